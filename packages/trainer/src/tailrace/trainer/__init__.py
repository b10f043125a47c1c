"""GRPO with clip-higher on FSDP2, for any Hugging Face causal LM: losses, gradients, checkpoints, supervised warm start.

Importing this loads no torch; `TrainerWorker` and `load_weights_file` load it on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.contracts import extra
from tailrace.trainer.advantages import group_advantages, token_weights
from tailrace.trainer.checkpoint_files import checkpoints
from tailrace.trainer.config import AdapterConfig, CriticConfig, TrainerConfig
from tailrace.trainer.errors import (
    BatchError,
    CheckpointError,
    CheckpointTimeoutError,
    DeviceError,
    ModelError,
    NonFiniteGradientError,
    ProcessGroupError,
    TrainerConfigError,
    TrainerError,
    WarmStartCancelledError,
    WarmStartError,
    WarmStartTimeoutError,
)

if TYPE_CHECKING:
    from tailrace.trainer.backend import TrainingBackend
    from tailrace.trainer.weights_file import load_weights_file
    from tailrace.trainer.worker import TrainerWorker

__version__ = "0.1.0"
__all__ = [
    "BatchError",
    "CheckpointError",
    "CheckpointTimeoutError",
    "DeviceError",
    "ModelError",
    "NonFiniteGradientError",
    "ProcessGroupError",
    "AdapterConfig",
    "CriticConfig",
    "TrainerConfig",
    "TrainerConfigError",
    "TrainerError",
    "TrainerWorker",
    "TrainingBackend",
    "WarmStartCancelledError",
    "WarmStartError",
    "WarmStartTimeoutError",
    "checkpoints",
    "group_advantages",
    "load_weights_file",
    "token_weights",
]

_LAZY = {
    "TrainerWorker": "tailrace.trainer.worker",
    "TrainingBackend": "tailrace.trainer.backend",
    "load_weights_file": "tailrace.trainer.weights_file",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        with extra("tailrace-trainer", "torch"):
            return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
