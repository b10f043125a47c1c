"""Evaluations as a log shows them: each is what one `Route` began with, and is done when all its answers are. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace import contracts as c
from tailrace.pipeline.controller.evaluations import EvaluationResult
from tailrace.pipeline.run.history import History


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


class Answers:
    """Observes a log. `done` are the evaluations that are complete."""

    def __init__(self) -> None:
        self.done: list[TimedEvaluation] = []
        self._open: dict[str, _Open] = {}
        self._failures: dict[str, int] = {}

    def observe(self, events: Sequence[c.Event], commands: Sequence[c.Command], history: History) -> None:
        """One instant, which the history has taken in."""
        for event in events:
            if isinstance(event, c.Scored) and event.trajectory in self._open:
                if history.trajectories[event.trajectory].reward is not None:
                    self._answered(event.trajectory, event.reward, history)
            elif isinstance(event, c.ScoringFailed) and event.trajectory in self._open:
                failures = self._failures[event.trajectory] = self._failures.get(event.trajectory, 0) + 1
                if failures >= history.spec.scoring_attempts:
                    self._answered(event.trajectory, None, history)
        for command in commands:
            if isinstance(command, c.Route):
                self._begin([ref for ref in command.trajectories if ref.purpose is c.Purpose.EVAL], history)

    def _begin(self, refs: Sequence[c.TrajectoryRef], history: History) -> None:
        began: dict[str, _Open] = {}
        for ref in refs:
            if ref.trajectory not in self._open and history.trajectories[ref.trajectory].reward is None:
                evaluation = self._open[ref.trajectory] = began.setdefault(ref.mode, _Open(ref.mode))
                evaluation.left += 1

    def _answered(self, name: str, reward: float | None, history: History) -> None:
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
