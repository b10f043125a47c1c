"""Errors of the command line, how each is told in one line, and the exit statuses."""

import os
import sys
import traceback
from collections.abc import Sequence

from tailrace.contracts import TailraceError, shown

FAILED = 1
"""The run itself failed, or what a command looked for was found."""
WRONG = 2
"""Something about the command, the configuration or a file is wrong."""
KILLED = 128
"""A shell's exit status of a process that a signal ended, less the signal."""
INTERRUPTED = 130


_LINES = "\n\t"
DEBUG = "TAILRACE_DEBUG"
"""Environment variable that adds the traceback to a message."""


class CliError(TailraceError):
    """Root of this package's errors."""


class CommandError(CliError, ValueError):
    """Options that do not fit together, or a value that cannot be used."""


class NotHereError(CliError, RuntimeError):
    """The configuration asks for something that this machine does not have."""


def complain(message: str, *, status: int = WRONG) -> int:
    """Print one line on stderr. Returns the exit status."""
    print(f"tailrace: {shown(message, keep=_LINES)}", file=sys.stderr)
    return status


def one_line(error: BaseException | str) -> str:
    """An error's message in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def lines_of(error: BaseException) -> Sequence[str]:
    """An error's message, one line for each fault."""
    from tailrace.pipeline.errors import ConfigListError

    return error.lines if isinstance(error, ConfigListError) else (one_line(error),)


def show_source() -> None:
    """Print the traceback of the current error, if the user asked for it."""
    if os.environ.get(DEBUG):
        traceback.print_exc()
