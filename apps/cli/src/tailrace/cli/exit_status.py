"""Exit statuses of the command line."""

FAILED = 1
"""The run itself failed, or what a command looked for was found."""
WRONG = 2
"""Something about the command, the configuration or a file is wrong."""
KILLED = 128
"""A shell's exit status of a process that a signal ended, less the signal."""
INTERRUPTED = 130
