"""Learning rates by optimizer step. A rate depends on the step's number alone, so a run that resumes goes on exactly."""

from __future__ import annotations

import math

from tailrace.trainer.config import TrainerConfig


def learning_rate(config: TrainerConfig, step: int) -> float:
    """The learning rate of an optimizer step.

    It rises linearly over `warmup_steps`, stays at `lr` for `lr_stable_steps`, falls to `lr_min` over `lr_decay_steps` and
    stays there; ``"constant"`` stays at `lr`.

    Args:
        config: the schedule.
        step: how many steps came before it.
    """
    warmup = config.warmup_steps
    begins = warmup + config.lr_stable_steps
    if config.lr_schedule == "constant" or step < begins:
        return config.lr * min(1.0, (step + 1) / max(1, warmup))
    done = min(1.0, (step - begins) / config.lr_decay_steps)
    left = 1.0 - done if config.lr_schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.lr_min + (config.lr - config.lr_min) * left
