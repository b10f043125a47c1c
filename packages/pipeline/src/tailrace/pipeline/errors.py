"""What can go wrong in a pipeline, each with one line for the person at the terminal."""

from tailrace.contracts import TailraceError


class PipelineError(TailraceError):
    """Root of this package's errors."""


class ControllerError(PipelineError, ValueError):
    """An event does not fit the controller's state: a bug in an executor, or a log from another version."""


class PolicyError(PipelineError, ValueError):
    """A policy's options make no sense."""


class ConfigError(PipelineError, ValueError):
    """A configuration cannot be used: unknown key, wrong type or unit, missing file."""


class RunDirectoryError(PipelineError, OSError):
    """A run directory is missing, damaged, or in use."""


class RoleError(PipelineError, RuntimeError):
    """A role could not start or broke."""


class DeadlineError(PipelineError, TimeoutError):
    """Something was waited for longer than its deadline. The message names it."""


class RunFailedError(PipelineError, RuntimeError):
    """The controller gave the run up. The message is its reason."""
