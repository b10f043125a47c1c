"""Errors of the trainer."""

from __future__ import annotations

from tailrace.contracts import TailraceError


class TrainerError(TailraceError):
    """Root of the trainer's errors."""


class TrainerConfigError(TrainerError, ValueError):
    """A setting is outside its range."""


class BatchError(TrainerError, ValueError):
    """A batch cannot be trained on: it lacks a reward or tokens, or a log-probability is not finite."""


class NonFiniteGradientError(TrainerError, ArithmeticError):
    """The gradient has an infinity or a NaN. The weights were not changed."""


class OffloadedError(TrainerError, RuntimeError):
    """A part of the trainer's state is used while it is in host memory."""


class CheckpointError(TrainerError, RuntimeError):
    """A checkpoint is absent, incomplete, damaged, or made for another model."""


class CheckpointTimeoutError(TrainerError, TimeoutError):
    """A checkpoint was not durable in time."""


class AdapterError(CheckpointError):
    """An adapter is damaged, or of another model or rank."""


class ModelError(TrainerError, ValueError):
    """A model directory does not hold a causal LM that this trainer can drive."""


class DeviceError(TrainerError, RuntimeError):
    """This machine does not have the device that was asked for."""


class ProcessGroupError(TrainerError, RuntimeError):
    """A process group with another rank or world size exists already."""


class WarmStartError(TrainerError, RuntimeError):
    """A process of a warm start failed."""


class WarmStartTimeoutError(TrainerError, TimeoutError):
    """A warm start missed its deadline."""


class WarmStartCancelledError(TrainerError, RuntimeError):
    """A warm start was cancelled by its caller."""
