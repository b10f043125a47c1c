"""Figures of the scores of a run, folded from its log: what ran over its budget or failed, and what training waited for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tailrace import contracts as c
from tailrace.pipeline.controller.members import SCORER


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
