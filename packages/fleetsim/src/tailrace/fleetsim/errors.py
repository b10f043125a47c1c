"""What can be wrong with a simulated fleet, each with one line that says which numbers clash."""

from tailrace.contracts import TailraceError


class FleetsimError(TailraceError):
    """Root of this package's errors."""


class FleetError(FleetsimError, ValueError):
    """A fleet that cannot exist: a stage without devices, a split that does not divide, an impossible link."""


class StalledError(FleetsimError, RuntimeError):
    """The simulated run can make no progress. On a real fleet it would hang."""
