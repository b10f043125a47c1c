"""What a run's checkpoints take on disk, and what a trainer that is restarted repeats: arithmetic on the settings."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.controller.trainer_state import LEAST_KEPT
from tailrace.pipeline.config.models import CheckpointConfig


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """The checkpoints of a run, by count and by bytes.

    Args:
        repeats: most steps that a lost trainer repeats, if no checkpoint was being written: those since the last full state.
            While one is written they may be that many more.
        full: most checkpoints with full state on disk, those that are kept.
        weights: most checkpoints of weights alone that are kept beside them.
        full_bytes: bytes of one with full state.
        weights_bytes: bytes of one of weights alone.
        writing_bytes: bytes of what is written, or not yet removed, beside those that are kept.
        limit_bytes: bytes of those that are kept, if that is limited; 0: no limit.
    """

    repeats: int
    full: int
    weights: int
    full_bytes: int
    weights_bytes: int
    writing_bytes: int
    limit_bytes: int

    @property
    def kept_bytes(self) -> int:
        """Most bytes of the checkpoints that are kept."""
        kept = self.full * self.full_bytes + self.weights * self.weights_bytes
        return min(kept, max(self.limit_bytes, self.least_bytes)) if self.limit_bytes else kept

    @property
    def least_bytes(self) -> int:
        """Bytes of the checkpoints that stay whatever the limit is."""
        return min(self.full, LEAST_KEPT) * self.full_bytes


def plan_checkpoints(config: CheckpointConfig, steps: int, full_bytes: int, weights_bytes: int) -> CheckpointPlan:
    """What a run's checkpoints come to.

    Args:
        config: the settings.
        steps: steps of the run.
        full_bytes, weights_bytes: bytes of a checkpoint with full state, and of one of weights alone.
    """
    saves = -(-steps // config.every)
    full = min(config.keep, -(-saves // config.full_every))
    weights = min(full * (config.full_every - 1), max(0, saves - full))
    writing = full_bytes + (full_bytes if config.full_every == 1 else weights_bytes)
    repeats = min(steps, config.every * config.full_every)
    return CheckpointPlan(repeats, full, weights, full_bytes, weights_bytes, writing, int(config.keep_gb * 1e9))


def checkpoints_in_words(config: CheckpointConfig, steps: int) -> str:
    """What is saved when, and what a trainer that is restarted repeats, for a dry run."""
    plan = plan_checkpoints(config, steps, 0, 0)
    each = "each step" if config.every == 1 else f"every {config.every:,} steps"
    saved = f"full state {each}"
    if config.full_every > 1:
        saved = f"weights {each}, full state every {config.every * config.full_every:,}"
    again = f"{plan.repeats:,} steps" if plan.repeats > 1 else "one step"
    kept = f"{plan.full:,} with full state" + (f" and {plan.weights:,} of weights" if plan.weights else "")
    instead = (
        "; where others have newer weights, it takes those, and loses the optimizer's state of these steps instead"
    )
    limit = f", of at most {config.keep_gb:g} GB" if config.keep_gb else ""
    return (
        f"{saved}; at most {kept} are kept{limit}; a trainer that is restarted repeats up to {again}, and those that are made "
        f"while a checkpoint is written{instead if config.newer_weights else ''}"
    )
