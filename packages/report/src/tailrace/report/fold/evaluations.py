"""Evaluations as a log shows them: each is what one `Route` began with, and is done when all its answers are. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace import contracts as c
from tailrace.pipeline.controller.evaluations import EvaluationResult
from tailrace.pipeline.run.folding import Hears
from tailrace.report.fold.history import History


@dataclass(slots=True)
class _Open:
    result: EvaluationResult
    left: int = 0
    problems: dict[str, int] = field(default_factory=dict)


class EvaluationFold:
    """Hears of every answer to an evaluation. `done` are the evaluations that are complete, in this order."""

    def __init__(self, history: History) -> None:
        self.hears: Hears = {c.Scored: self._scored, c.ScoringFailed: self._failed, c.Route: self._begin}
        self.hears[c.Refused] = self._refused
        self.hears[c.CallFailed] = self._call_failed
        self.done: list[EvaluationResult] = []
        self._history = history
        self._open: dict[str, _Open] = {}
        self._failures: dict[str, int] = {}

    def _scored(self, now: float, event: c.Scored) -> None:
        del now
        if event.trajectory in self._open and self._history.trajectories[event.trajectory].reward is not None:
            self._answered(event)

    def _failed(self, now: float, event: c.ScoringFailed) -> None:
        del now
        if event.trajectory in self._open:
            failures = self._failures[event.trajectory] = self._failures.get(event.trajectory, 0) + 1
            if failures >= self._history.spec.scoring_attempts:
                self._answered(event)

    def _refused(self, now: float, event: c.Refused) -> None:
        del now
        if event.trajectory in self._open:
            self._answered(event)

    def _call_failed(self, now: float, event: c.CallFailed) -> None:
        del now
        if event.trajectory in self._open and (event.trajectory, event.answers) in self._history.unanswered:
            self._answered(event)

    def _begin(self, now: float, command: c.Route) -> None:
        del now
        began: dict[str, _Open] = {}
        for ref in command.trajectories:
            if ref.purpose is not c.Purpose.EVAL or ref.trajectory in self._open:
                continue
            if self._history.trajectories[ref.trajectory].reward is None:
                new = _Open(EvaluationResult(0, ref.mode))
                evaluation = self._open[ref.trajectory] = began.setdefault(ref.mode, new)
                evaluation.left += 1
                evaluation.problems[ref.trajectory] = ref.prompt

    def _answered(self, event: c.Scored | c.ScoringFailed | c.Refused | c.CallFailed) -> None:
        history = self._history
        evaluation, known = self._open.pop(event.trajectory), history.trajectories[event.trajectory]
        evaluation.left -= 1
        result = evaluation.result
        if isinstance(event, c.Scored):
            source = history.spec.evaluation.source(evaluation.problems[event.trajectory])
            result.answered(known.tokens, event.reward, event.correct, source)
        else:
            result.failed += 1
        if not evaluation.left:
            result.version, result.at_s = known.version or 0, history.now
            result.step = history.made.get(result.version, history.step)
            self.done.append(result)
