"""Errors of a rollout replica."""

from tailrace.contracts import TailraceError


class RolloutError(TailraceError):
    """Root of the errors of `tailrace.rollout`."""


class OptionError(RolloutError, ValueError):
    """An engine option is unknown or has a wrong value."""


class EngineMissingError(RolloutError, LookupError):
    """The engine, or a library that it needs, is not installed."""


class ModelLoadError(RolloutError, OSError):
    """A model directory does not exist, or the engine cannot load its model."""


class DeviceMissingError(RolloutError, RuntimeError):
    """The device that was asked for is not on this machine."""


class RequestError(RolloutError, ValueError):
    """The engine cannot take a request: its id is in use, its prompt is empty or too long for the model."""


class EngineBusyError(RolloutError, RuntimeError):
    """Weights were to be replaced while requests are in flight."""


class WeightsError(RolloutError, ValueError):
    """The weights do not fit the model: a parameter is missing, unknown or of another shape."""


class EngineAsleepError(RolloutError, RuntimeError):
    """The engine sleeps, or has no weights since it slept, and was given a request or weights."""


class WeightsDifferError(RolloutError, ValueError):
    """An engine has other weights than were published, although it loaded them.

    Args:
        line: the message.
        parameter: the first parameter that differs.
    """

    def __init__(self, line: str, parameter: str) -> None:
        super().__init__(line)
        self.parameter = parameter


class EngineDiedError(RolloutError, RuntimeError):
    """The engine failed while it generated and is no longer usable."""


class GenerationTimeoutError(RolloutError, TimeoutError):
    """Requests did not finish before the deadline."""


class ReplicaCrashedError(RolloutError, RuntimeError):
    """The replica's worker stopped on an error, which is the cause of this one."""


class ReplicaNotReadyError(RolloutError, RuntimeError):
    """A replica was given work before its first complete pull, or after a pull that failed midway."""


class RouteConflictError(RolloutError, RuntimeError):
    """A trajectory was routed to a replica that is generating it already."""


class SourceMismatchError(RolloutError, ValueError):
    """The trajectory source's answer does not match the request."""


class FlushTimeoutError(RolloutError, TimeoutError):
    """The trajectory source did not acknowledge tokens before the deadline."""


class CloseTimeoutError(RolloutError, TimeoutError):
    """The replica did not stop before the deadline."""


class RoundError(RolloutError, ValueError):
    """A number of tail batching is out of its range, or a call does not fit the open round. Nothing was changed."""


class UpdateRefusedError(RolloutError, ValueError):
    """A weight update is not newer than what is served, or is not the whole model. Nothing was changed."""


class UpdateFailedError(RolloutError, RuntimeError):
    """A replica could not load a complete update. All replicas serve the version before it."""


class VersionTimeoutError(RolloutError, TimeoutError):
    """The weight version that a request waits for did not arrive before the deadline."""


class ServiceDownError(RolloutError, RuntimeError):
    """The stream generation service is closed, or every replica has died more often than it may."""


class RequestTooLargeError(RolloutError, ValueError):
    """A request over HTTP is larger than the service takes."""


class UnknownRequestError(RolloutError, LookupError):
    """A reader wants to resume a request that the service does not have, or no longer."""


class ServeError(RolloutError, OSError):
    """The service cannot listen at an address."""
