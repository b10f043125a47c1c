"""What provisioning `balanced` may begin with, from a run's log: seconds of training on a batch, and lengths of responses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from tailrace import contracts as c
from tailrace.pipeline.run.eventlog import Instant

_STEPS, _RESPONSES = 8, 4_096  # the last ones, since both change as the model learns
QUANTILES = 20


@dataclass(frozen=True, slots=True)
class StageFigures:
    """Figures of the end of a run.

    Args:
        train_s: mean seconds for which the trainer computed on a batch; None if it trained on none.
        lengths: response tokens at equal distances in the distribution, shortest first; empty if none finished.
    """

    train_s: float | None
    lengths: tuple[int, ...]


def stage_figures(log: Iterable[Instant]) -> StageFigures:
    """The figures of a log."""
    training: set[str] = set()
    lengths: deque[int] = deque(maxlen=_RESPONSES)
    steps: deque[float] = deque(maxlen=_STEPS)
    added_s = 0.0
    for instant in log:
        for event in instant.events:
            match event:
                case c.Finished(trajectory=name, tokens=tokens) if name in training:
                    training.discard(name)
                    lengths.append(max(1, tokens))
                case c.Accumulated(metrics=metrics):
                    added_s += metrics.get("wall_s", 0.0)
                case c.Stepped(metrics=metrics):
                    steps.append(added_s + metrics.get("wall_s", 0.0))
                    added_s = 0.0
        for command in instant.commands:
            if isinstance(command, c.Route):
                training.update(ref.trajectory for ref in command.trajectories if ref.purpose is c.Purpose.TRAIN)
    ordered = sorted(lengths)
    places = ((2 * place + 1) * len(ordered) // (2 * QUANTILES) for place in range(QUANTILES if ordered else 0))
    return StageFigures(fmean(steps) if steps else None, tuple(ordered[place] for place in places))
