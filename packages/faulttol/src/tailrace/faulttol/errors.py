"""Errors of detection, recovery and fault injection."""

from __future__ import annotations

from tailrace.contracts import TailraceError


class FaulttolError(TailraceError):
    """Root of this package's errors."""


class HeartbeatError(FaulttolError, ValueError):
    """A limit of a heartbeat monitor is out of its range."""


class DetectionError(FaulttolError, ValueError):
    """A window of a detection policy is out of its range."""


class RecoveryError(FaulttolError, ValueError):
    """A limit of a recovery policy is out of its range."""


class FaultError(FaulttolError, ValueError):
    """The description of a fault to inject is not valid."""


class InjectedError(FaulttolError, RuntimeError):
    """What a fault of the kind ``raise`` raises."""


class GroupError(FaulttolError, RuntimeError):
    """An elastic group has no such worker, has it already, or is given up by its recovery policy."""


class MemberGoneError(FaulttolError, RuntimeError):
    """A member is gone, and no successor came in time."""


class LateAnswerError(FaulttolError, TimeoutError):
    """A member did not answer in time."""


class UnreadableError(FaulttolError, RuntimeError):
    """A GPU's tensor cores cannot be read any more."""
