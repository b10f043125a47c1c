"""Errors of a simulated fleet. Each message is one line with the numbers in conflict."""

from tailrace.contracts import TailraceError


class FleetsimError(TailraceError):
    """Root of this package's errors."""


class FleetError(FleetsimError, ValueError):
    """A fleet that cannot exist: a stage without devices, a split that does not divide, an impossible link."""


class StalledError(FleetsimError, RuntimeError):
    """The simulated run can make no progress. On a real fleet it would hang."""


class UnknownNameError(FleetsimError, LookupError):
    """No device or model has this name. The message names the close ones and all that are known."""


class HardwareFileError(FleetsimError, ValueError):
    """A file that describes a device or a model cannot be read as one."""


class DoesNotFitError(FleetError):
    """A model needs more memory than the devices have. The message says what would fit."""


class WorkloadError(FleetsimError, ValueError):
    """A workload that cannot be: lengths beyond the limit, a trace that is damaged."""


class EngineError(FleetsimError, ValueError):
    """An engine was made with a number that cannot be, or was asked to go back in time."""


class WorkError(EngineError):
    """A trajectory that an engine cannot take: here already, nothing to generate, or larger than the KV cache."""


class DriverDiedError(FleetsimError, RuntimeError):
    """The driver of a simulated run dies here, by script."""


class ProfileError(FleetsimError, ValueError):
    """A machine's profile cannot be read or measured."""


class ReproductionError(FleetsimError, ValueError):
    """A published number that is not known, or a table of them that is damaged."""
