"""What can go wrong when a run is looked at, each with one line for the person at the terminal."""

from tailrace.contracts import TailraceError


class ReportError(TailraceError):
    """Root of this package's errors."""


class MeasuredError(ReportError, ValueError):
    """A run that says too little to be compared."""
