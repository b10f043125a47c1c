"""Fits the trainer's time by tokens: its shape to updates of several sizes, its level to the steps of the run."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.costs import costs, relative_error
from tailrace.fleetsim.profile.machine import TrainingPart
from tailrace.fleetsim.profile.samples import TrainerSamples, TrainingUpdate
from tailrace.fleetsim.profile.timing import Timing

FIRST = 2  # the first updates, which still allocate and import


def fit_training(trainer: TrainerSamples, timing: Timing) -> TrainingPart:
    """The cost of an update.

    Updates of several sizes were measured while nothing else ran. Beside replicas the same update takes more processor time,
    since caches are shared. So the level is fitted to the run.

    Raises:
        ProfileError: there are too few updates.
    """
    settled = trainer.updates[FIRST:] if len(trainer.updates) > FIRST + 2 else trainer.updates
    if not settled:
        raise ProfileError("found no training step to fit to, expected at least one: profile more steps (--steps)")
    shaped = trainer.sizes or settled
    found = costs(
        [_row(update) for update in shaped], [timing.spent_s(update.began, update.ended) for update in shaped]
    )
    rows, targets = (
        [_row(update) for update in settled],
        [timing.spent_s(update.began, update.ended) for update in settled],
    )
    level = sum(targets) / sum(_estimate(found, row) for row in rows)
    found = [level * value for value in found]
    passed_s = sum(update.ended.wall_s - update.began.wall_s for update in settled)
    steps_s = sum(step.ended.wall_s - step.began.wall_s for step in trainer.steps[-len(settled) :])
    # Fetching a batch is computing of other members, slowed down like the trainer's own.
    return TrainingPart(
        fixed_s=found[0],
        per_token_s=found[1],
        per_square_token_s=found[2],
        batch_s=max(0.0, steps_s - passed_s) * min(1.0, sum(targets) / passed_s) / len(settled),
        error=relative_error(rows, targets, found),
    )


def thousand_tokens_s(updates: Sequence[TrainingUpdate], timing: Timing) -> float:
    """Processor seconds for 1,000 tokens."""
    tokens = sum(update.tokens for update in updates)
    spent_s = sum(timing.processor_s(update.began, update.ended) for update in updates)
    return 1000 * spent_s / tokens if tokens else 0.0


def _row(update: TrainingUpdate) -> tuple[float, ...]:
    return float(update.parts), float(update.tokens), float(update.square_tokens)


def _estimate(found: Sequence[float], row: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(found, row, strict=True))
