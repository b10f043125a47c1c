"""What goes wrong in detection, recovery and fault injection."""

from __future__ import annotations

from tailrace.contracts import TailraceError


class FaulttolError(TailraceError):
    """Root of this package's errors."""


class HeartbeatError(FaulttolError, ValueError):
    """The limits of a heartbeat monitor make no sense."""


class RecoveryError(FaulttolError, ValueError):
    """The limits of a recovery policy make no sense."""


class FaultError(FaulttolError, ValueError):
    """A fault to inject is not written as it should be."""
