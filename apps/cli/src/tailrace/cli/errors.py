"""Errors of the command line."""

from tailrace.contracts import TailraceError


class CliError(TailraceError):
    """Root of this package's errors."""


class CommandError(CliError, ValueError):
    """Options that do not fit together, or a value that cannot be used."""


class NotHereError(CliError, RuntimeError):
    """The configuration asks for something that this machine does not have."""
