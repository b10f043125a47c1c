"""The figures of a run's summary that its log gives, in one pass over it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tailrace import contracts as c
from tailrace.controller.members import SCORER
from tailrace.controller.view import RunView
from tailrace.faulttol import Fault
from tailrace.pipeline.run.eventlog import Instant
from tailrace.pipeline.run.figures.detection import DetectionFold
from tailrace.pipeline.run.figures.effective_time import EffectiveTime
from tailrace.pipeline.run.figures.faults import FaultFold
from tailrace.pipeline.run.figures.folding import Audience, follow
from tailrace.pipeline.run.figures.predictions import PredictionFigures
from tailrace.pipeline.run.figures.replicas import ReplicaFigures
from tailrace.pipeline.run.figures.rounds import RoundFigures
from tailrace.pipeline.run.figures.stream import StreamFigures


def log_figures(
    log: Iterable[Instant], run: RunView, *, trainer_devices: int, faults: Iterable[Fault]
) -> dict[str, Any]:
    """Fields of a summary.

    Args:
        log: the whole log, as it is replayed.
        run: the view of the controller that it is shown to.
        trainer_devices: devices of the trainer.
        faults: those that were scripted.
    """
    spec = run.spec
    plain = (
        ScoreFigures(),
        RoundFigures(spec),
        StreamFigures(),
        ReplicaFigures(),
        AttachFigures(),
        PredictionFigures(),
    )
    struck, detection, effective = FaultFold(), DetectionFold(spec.detection), EffectiveTime(run, trainer_devices)
    follow(log, *plain, Audience(struck, detection), effective)
    found: dict[str, Any] = {}
    for figures in (*plain, struck.figures(faults), effective.figures()):
        found |= figures.plain()
    return found | {"false_detections": detection.figures().false_detections}


class AttachFigures:
    """A fold over the instants of a log.

    `attaches` counts the controllers that attached to members of one that died; `restarts` the members that they restarted at
    once although they had not died.
    """

    def __init__(self) -> None:
        self.attaches = self.restarts = 0

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """Take in one instant."""
        del now
        if not any(isinstance(event, c.Attached) for event in events):
            return
        self.attaches += 1
        down = {(event.role, event.id) for event in events if isinstance(event, c.Down)}
        restarted = [(one.role, one.id) for one in commands if isinstance(one, c.Restart)]
        self.restarts += sum(key not in down for key in restarted)

    def plain(self) -> dict[str, Any]:
        """The figures as fields of a summary."""
        return {"controller_attaches": self.attaches, "restarts_by_attach": self.restarts}


class ScoreFigures:
    """A fold over the instants of a log.

    `over_budget` counts responses that used up a limit while they were scored, `failed` attempts at a score that failed,
    `rechecked` and `false_timeouts` timed-out responses that were tried again with the largest timeout, and those of them
    that were right. `exposed_s` are the seconds in which the trainer stood idle while nothing but rewards was missing from its
    next batch. `sandbox` is the one in which programs ran, None if there were none.
    """

    def __init__(self) -> None:
        self.over_budget = self.failed = self.rechecked = self.false_timeouts = 0
        self.exposed_s = 0.0
        self.sandbox: str | None = None
        self._finished: dict[str, float] = {}
        self._scored: dict[str, float] = {}
        self._idle_since = -math.inf

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """Take in one instant."""
        for event in events:
            match event:
                case c.Finished(trajectory=name) | c.Turned(trajectory=name, done=True):
                    self._finished[name] = now
                case c.Scored(trajectory=name, over_budget=over):
                    self._scored.setdefault(name, now)
                    self.over_budget += bool(over)
                case c.ScoringFailed():
                    self.failed += 1
                case c.Rechecked(correct=correct):
                    self.rechecked += 1
                    self.false_timeouts += correct
                case c.Activity(role=role, phase=phase) if role == SCORER:
                    self.sandbox = phase
                case c.Stepped() | c.Accumulated():
                    self._idle_since = now
        for command in commands:
            match command:
                case c.Step(mini_batches=parts):
                    self._given([name for part in parts for name in part])
                case c.Accumulate(trajectories=names):
                    self._given(names)
                case c.Abort(trajectories=names):
                    self._forget(names)

    def plain(self) -> dict[str, Any]:
        """The figures as fields of a summary."""
        return {
            "scores_over_budget": self.over_budget,
            "scores_failed": self.failed,
            "scores_rechecked": self.rechecked,
            "false_timeouts": self.false_timeouts,
            "reward_exposed_s": round(self.exposed_s, 3),
            "sandbox": self.sandbox,
        }

    def _given(self, names: Sequence[str]) -> None:
        finished = [self._finished[name] for name in names if name in self._finished]
        scored = [self._scored[name] for name in names if name in self._scored]
        if finished and scored:
            self.exposed_s += max(0.0, max(scored) - max(*finished, self._idle_since))
        self._forget(names)

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._finished.pop(name, None)
            self._scored.pop(name, None)
