"""What fuzzing finds, and what it cannot run."""

from tailrace.contracts import TailraceError


class FuzzError(TailraceError):
    """Root of this package's errors."""


class CaseError(FuzzError, ValueError):
    """A case that cannot be read or cannot be: the message says which part, what was found and what was expected."""


class InvariantError(FuzzError, AssertionError):
    """An invariant of the design does not hold.

    Args:
        invariant: which one, by name.
        what: what was found and what was expected.
    """

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant, self.what = invariant, what
