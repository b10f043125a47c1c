"""What can go wrong in a pipeline, each with one line for the person at the terminal."""

import errno
from pathlib import Path

from tailrace.contracts import Cause, TailraceError


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


class RunWriteError(RunDirectoryError):
    """A file of a run directory could not be written: the disk is full, or broken. The file is as it was before.

    Made of `errno`, `strerror` (the reason) and `filename` (the path), as any `OSError`.
    """

    def __str__(self) -> str:
        return f"{self.filename}: could not be written: {self.strerror}"


class LogWriteError(RunWriteError):
    """The event log could not be written. It ends with a whole line, so the run can go on from it."""

    def __str__(self) -> str:
        what = "free space" if self.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "mend that"
        return f"{super().__str__()}; {what}, then: tailrace run --resume {Path(str(self.filename)).parent}"


class RoleError(PipelineError, RuntimeError):
    """A role could not start or broke."""


class CheckpointUnusableError(RoleError):
    """The checkpoint that the trainer was to start from cannot be used; another one may be."""

    cause = Cause.CHECKPOINT


class DeadlineError(PipelineError, TimeoutError):
    """Something was waited for longer than its deadline. The message names it."""


class RunFailedError(PipelineError, RuntimeError):
    """The controller gave the run up. The message is its reason."""


class PluginAnswerError(PipelineError, RuntimeError):
    """A policy answered what its contract forbids. The message names the policy, the method and the answer."""
