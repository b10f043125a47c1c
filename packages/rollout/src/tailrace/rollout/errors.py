"""What goes wrong in a rollout replica, one class each."""

from tailrace.contracts import TailraceError


class RolloutError(TailraceError):
    """Root of the errors of `tailrace.rollout`."""


class OptionError(RolloutError, ValueError):
    """An engine option is unknown or has a wrong value."""


class EngineMissingError(RolloutError, LookupError):
    """The engine, or a library that it needs, is not installed."""


class ModelLoadError(RolloutError, OSError):
    """A model directory is not there, or the engine cannot load what is in it."""


class DeviceMissingError(RolloutError, RuntimeError):
    """The device that was asked for is not on this machine."""


class RequestError(RolloutError, ValueError):
    """A request that the engine cannot take: an id in use, an empty prompt, or more tokens than the model holds."""


class EngineBusyError(RolloutError, RuntimeError):
    """Weights may only be replaced when no request is in flight."""


class WeightsError(RolloutError, ValueError):
    """The weights do not fit the model: a parameter is missing, unknown or of another shape."""


class EngineDiedError(RolloutError, RuntimeError):
    """The engine failed while it generated. It serves nothing any more."""


class GenerationTimeoutError(RolloutError, TimeoutError):
    """Requests did not finish before the deadline."""


class ReplicaCrashedError(RolloutError, RuntimeError):
    """The replica's worker stopped on an error, which is the cause of this one."""


class ReplicaNotReadyError(RolloutError, RuntimeError):
    """A replica was given work before its first complete pull, or after a load that broke off midway."""


class RouteConflictError(RolloutError, RuntimeError):
    """A trajectory was routed to a replica that is generating it already."""


class SourceMismatchError(RolloutError, ValueError):
    """The trajectory source answered something else than it was asked."""


class FlushTimeoutError(RolloutError, TimeoutError):
    """The trajectory source did not acknowledge tokens before the deadline."""


class CloseTimeoutError(RolloutError, TimeoutError):
    """The replica did not stop before the deadline."""
