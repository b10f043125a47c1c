"""Errors of the controller. Each has a message of one line."""

from tailrace.contracts import TailraceError


class PipelineError(TailraceError):
    """Root of the errors of a pipeline: of the controller, of what carries its commands out, of a run."""


class ControllerError(PipelineError, ValueError):
    """An event contradicts the controller's state: a bug in an executor, or a log of another version."""


class PolicyError(PipelineError, ValueError):
    """An option of a policy is out of its range."""


class PluginAnswerError(PipelineError, RuntimeError):
    """A policy gave an answer that its contract forbids. The message names the policy, the method and the answer."""
