"""Evaluations as a log shows them: each is what one `Route` began with, and is done when all its answers are. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace import contracts as c
from tailrace.pipeline.controller.evaluations import EvaluationResult
from tailrace.report.fold.hearing import Hears
from tailrace.report.fold.history import History


@dataclass(frozen=True, slots=True)
class TimedEvaluation:
    """An evaluation, when its last answer was scored, and how many batches its version had seen."""

    at_s: float
    step: int
    result: EvaluationResult


@dataclass(slots=True)
class _Open:
    mode: str
    left: int = 0
    rewards: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    failed: int = 0


class EvaluationFold:
    """Hears of every answer to an evaluation. `done` are the evaluations that are complete."""

    def __init__(self, history: History) -> None:
        self.hears: Hears = {c.Scored: self._scored, c.ScoringFailed: self._failed, c.Route: self._begin}
        self.done: list[TimedEvaluation] = []
        self._history = history
        self._open: dict[str, _Open] = {}
        self._failures: dict[str, int] = {}

    def _scored(self, now: float, event: c.Scored) -> None:
        del now
        if event.trajectory in self._open and self._history.trajectories[event.trajectory].reward is not None:
            self._answered(event.trajectory, event.reward)

    def _failed(self, now: float, event: c.ScoringFailed) -> None:
        del now
        if event.trajectory in self._open:
            failures = self._failures[event.trajectory] = self._failures.get(event.trajectory, 0) + 1
            if failures >= self._history.spec.scoring_attempts:
                self._answered(event.trajectory, None)

    def _begin(self, now: float, command: c.Route) -> None:
        del now
        began: dict[str, _Open] = {}
        for ref in command.trajectories:
            if ref.purpose is not c.Purpose.EVAL or ref.trajectory in self._open:
                continue
            if self._history.trajectories[ref.trajectory].reward is None:
                evaluation = self._open[ref.trajectory] = began.setdefault(ref.mode, _Open(ref.mode))
                evaluation.left += 1

    def _answered(self, name: str, reward: float | None) -> None:
        history = self._history
        evaluation, known = self._open.pop(name), history.trajectories[name]
        evaluation.left -= 1
        if reward is None:
            evaluation.failed += 1
        else:
            evaluation.rewards.append(reward)
            evaluation.tokens.append(known.tokens)
        if not evaluation.left:
            rewards, version = evaluation.rewards, known.version or 0
            accuracy = sum(rewards) / len(rewards) if rewards else 0.0
            result = EvaluationResult(
                version, evaluation.mode, accuracy, len(rewards), evaluation.failed, evaluation.tokens
            )
            self.done.append(TimedEvaluation(history.now, history.made.get(version, history.step), result))
