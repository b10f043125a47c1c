"""What goes wrong between a version and the framework that takes it."""

# ruff: noqa: N818  the names say what happened; all of them are errors
from __future__ import annotations

from tailrace.paramserver.errors import ParamServerError


class BridgeError(ParamServerError):
    """Root of the errors of the bridges."""


class WeightsMismatch(BridgeError, ValueError):
    """A version and a model do not fit: a tensor is missing, unknown, or of another shape or dtype."""


class EngineUnreachable(BridgeError, ConnectionError):
    """An engine does not answer, or the connection to it broke."""


class EngineTimeout(BridgeError, TimeoutError):
    """An engine did not do its part before the deadline."""


class EngineRefused(BridgeError, RuntimeError):
    """An engine answered that it did not do what it was asked."""


class BridgeStateInvalid(BridgeError, RuntimeError):
    """A call came out of turn, or with settings that cannot work."""
