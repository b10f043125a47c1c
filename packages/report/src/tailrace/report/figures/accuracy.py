"""What was measured on held-out problems, with its uncertainty: the run's curve and the controls without RL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tailrace.pipeline.run.figures import percentile
from tailrace.pipeline.run.prepare import FORCED, FORCED_GREEDY, GREEDY, SAMPLED
from tailrace.report.fold.evaluations import TimedEvaluation
from tailrace.report.record import Record

CONTROL_NAMES = {
    GREEDY: "warm start, greedy",
    FORCED: "worked style forced, sampled",
    FORCED_GREEDY: "worked style forced, greedy",
}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One accuracy.

    Args:
        accuracy: share of problems solved, 0 to 1.
        problems: problems that were scored.
        failed: problems that the verifier could not score; they count neither way.
    """

    name: str
    accuracy: float
    problems: int
    failed: int
    length_p50: float
    length_p99: float

    @property
    def error(self) -> float:
        """Binomial standard error of the accuracy."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.problems) if self.problems else 0.0


@dataclass(frozen=True, slots=True)
class Results:
    """Before, after and controls. `curve` is held-out accuracy, sampled, in the order in which it was measured."""

    curve: list[tuple[TimedEvaluation, Accuracy]]
    before: Accuracy | None
    after: Accuracy | None
    after_greedy: Accuracy | None
    controls: list[Accuracy]

    @property
    def best_control(self) -> Accuracy | None:
        """The most accurate without RL, however it was decoded. With controls, what RL started from is one of them."""
        start = [] if self.before is None or not self.controls else [replace(self.before, name="warm start, sampled")]
        return max([*self.controls, *start], key=lambda control: control.accuracy, default=None)


NOTHING = Results([], None, None, None, [])


def results(record: Record) -> Results:
    """Sort the evaluations of a run into before, after and controls."""
    evaluations = record.folds.evaluations.done
    curve = [(timed, _measured(timed, "RL, sampled")) for timed in evaluations if timed.result.mode == SAMPLED]
    curve.sort(key=lambda point: (point[0].step, point[0].at_s))
    first = min((timed.result.version for timed in evaluations), default=0)
    last = max((timed.result.version for timed in evaluations), default=0)
    before = curve[0][1] if curve and curve[0][0].step == 0 else None
    after = curve[-1][1] if curve and curve[-1][0].step > 0 else None
    controls = [
        _measured(timed, CONTROL_NAMES.get(timed.result.mode, f"warm start, {timed.result.mode}"))
        for timed in evaluations
        if timed.result.mode != SAMPLED and timed.result.version == first
    ]
    controls += [_measured(timed, f"continued fine-tuning, {timed.result.mode}") for timed in record.controls]
    greedy = [
        _measured(timed, "after RL, greedy")
        for timed in evaluations
        if timed.result.mode == GREEDY and timed.result.version == last and last > first
    ]
    return Results(
        curve,
        _renamed(before, "before RL, sampled"),
        _renamed(after, "after RL, sampled"),
        greedy[-1] if greedy else None,
        controls,
    )


def results_of_summary(summary: Mapping[str, Any], problems: int) -> Results:
    """The same from ``summary.json``, without the curve and the lengths.

    Args:
        problems: held-out problems of one evaluation.
    """

    def measured(name: str, accuracy: float | None) -> Accuracy | None:
        return None if accuracy is None else Accuracy(name, accuracy, problems, 0, 0.0, 0.0)

    named = {
        CONTROL_NAMES.get(name.removeprefix("warm start, "), name): value for name, value in summary["controls"].items()
    }
    controls = [measured(name, value) for name, value in named.items()]
    return Results(
        [],
        measured("before RL, sampled", summary["eval_accuracy_before"]),
        measured("after RL, sampled", summary["eval_accuracy_after"]),
        measured("after RL, greedy", summary.get("eval_accuracy_after_greedy")),
        [control for control in controls if control is not None],
    )


def _measured(timed: TimedEvaluation, name: str) -> Accuracy:
    result, lengths = timed.result, sorted(timed.result.tokens)
    p50, p99 = percentile(lengths, 0.5), percentile(lengths, 0.99)
    return Accuracy(name, result.accuracy, result.problems, result.failed, p50, p99)


def _renamed(measured: Accuracy | None, name: str) -> Accuracy | None:
    return None if measured is None else replace(measured, name=name)
