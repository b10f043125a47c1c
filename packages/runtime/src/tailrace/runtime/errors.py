"""Errors of executor and hosts. Each has a message of one line."""

from tailrace.contracts import Cause
from tailrace.controller.errors import PipelineError


class RoleError(PipelineError, RuntimeError):
    """A role could not start, or failed.

    `cause` says what its member's end means; None where the executor finds that out.
    """

    cause: Cause | None = None


class AnswerError(RoleError, TypeError):
    """A role answered a call with another type than its protocol says."""


class StaleEpochError(RoleError):
    """A member refused a controller's call, since a later controller has replaced it."""


class SupersededError(PipelineError, RuntimeError):
    """This controller was replaced by a later one, while it was stopped or cut off. It must not touch the run any more."""


class CheckpointUnusableError(RoleError):
    """The checkpoint that the trainer should start from cannot be used; an older one may be."""

    cause = Cause.CHECKPOINT


class MachineUnfitError(RoleError):
    """The machine where a member should start did not pass its checks."""

    cause = Cause.MACHINE


class DeadlineError(PipelineError, TimeoutError):
    """A wait passed its deadline. The message says what it waited for."""


class RunFailedError(PipelineError, RuntimeError):
    """The controller ended the run as failed. The message is its reason."""
