"""What the trainer raises on purpose."""

from __future__ import annotations

from tailrace.contracts import TailraceError


class TrainerError(TailraceError):
    """Root of the trainer's errors."""


class TrainerConfigError(TrainerError, ValueError):
    """A setting is outside its range."""


class BatchError(TrainerError, ValueError):
    """A batch cannot be trained on: no reward, no tokens, or log-probabilities that do not line up."""


class NonFiniteGradientError(TrainerError, ArithmeticError):
    """The gradient holds an infinity or a NaN. The weights were not touched."""


class CheckpointError(TrainerError, RuntimeError):
    """A checkpoint is absent, incomplete, damaged, or made for another model."""


class CheckpointTimeoutError(TrainerError, TimeoutError):
    """A checkpoint was not durable in time."""


class ModelError(TrainerError, ValueError):
    """A model directory does not hold a causal LM that this trainer can drive."""


class DeviceError(TrainerError, RuntimeError):
    """The device that was asked for is not there."""


class ProcessGroupError(TrainerError, RuntimeError):
    """The process group that exists is not the one that was asked for."""


class WarmStartError(TrainerError, RuntimeError):
    """A warm start failed in one of its processes."""


class WarmStartTimeoutError(TrainerError, TimeoutError):
    """A warm start was not done in time."""


class WarmStartCancelledError(TrainerError, RuntimeError):
    """A warm start was cancelled by its caller."""
