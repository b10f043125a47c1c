"""Ours beside the paper's: records, and what they say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tailrace.fleetsim.reproduce.targets import ScoreKind, Target, TargetClass, Value


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """One target and what the simulator finds.

    Args:
        ours: in the order of the target's values; None where it could not be measured.
        errors: relative error of each value.
        failed: why it could not be measured.
    """

    target: Target
    ours: tuple[Value, ...] | None
    errors: tuple[float, ...]
    failed: str | None = None

    @property
    def relative_error(self) -> float:
        """The mean over its values; 1 if it could not be measured."""
        return statistics.fmean(self.errors) if self.errors else 1.0

    @property
    def within(self) -> bool:
        """Whether every value is within its tolerance."""
        if self.ours is None:
            return False
        return all(self.holds(index) for index in range(len(self.ours)))

    def holds(self, index: int) -> bool:
        """Whether one of its values is within its tolerance."""
        target = self.target
        return self.ours is not None and target.tolerance_of(index).holds(target.paper[index], self.ours[index])

    @property
    def without_effects(self) -> float | None:
        """Mean relative error of a simulator without effects; None where that means nothing."""
        target = self.target
        if target.without_effects is None:
            return None
        return statistics.fmean(
            target.tolerance_of(index).error(paper, target.without_effects) for index, paper in enumerate(target.paper)
        )

    def plain(self) -> dict[str, Any]:
        """The record as plain data: a single value as such, several as a list."""
        target = self.target
        single = len(target.paper) == 1
        ours = None if self.ours is None else [_short(value) for value in self.ours]
        return {
            "id": target.id,
            "paper": target.paper[0] if single else list(target.paper),
            "ours": ours[0] if ours is not None and single else ours,
            "relative_error": round(self.relative_error, 4),
            "scored": target.scored,
            "class": target.kind.value,
            "score": target.score.value,
            "with": target.leader,
            "was_fitted": target.was_fitted,
            "unit": target.unit,
            "mode": target.mode,
            "section": target.section,
            "metric": target.metric,
            "labels": list(target.labels),
            "errors": [round(error, 4) for error in self.errors],
            "tolerance": str(target.tolerance),
            "within": self.within,
            "reason": self.failed or (None if self.within else target.reason),
        }


def record(target: Target, ours: Sequence[Value] | None, failed: str | None = None) -> TargetRecord:
    """What was found for a target."""
    errors = () if ours is None else tuple(_errors(target, ours))
    return TargetRecord(target, None if ours is None else tuple(ours), errors, failed)


def _errors(target: Target, ours: Sequence[Value]) -> Iterator[float]:
    for index, (paper, one) in enumerate(zip(target.paper, ours, strict=True)):
        yield target.tolerance_of(index).error(paper, one)


@dataclass(frozen=True, slots=True)
class OrderComparison:
    """A statement on orders: each comparison in words, and whether it is as the paper says."""

    id: str
    statement: str
    comparisons: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class PredictionScore:
    """The score of a paper.

    Targets that are nearly the same measurement count once, with their mean error. What could not be measured has an error
    of 1, or is wrong. Those that parameters were once chosen on stand apart.

    Args:
        median: of their errors; not a number if there are none.
        groups: how many errors those are.
        apart: how many more stand apart.
        median_with: of all of them together.
        without_effects: the median of a simulator without effects, over the groups where that means something.
        compared: how many those are.
        compared_median: ours over the same groups.
        worst: the largest error, of the group that `worst_id` leads.
        worst_value: the largest error of a single value, of the target `worst_value_id`.
        right: statements and limits that are right, of `statements`.
    """

    median: float
    groups: int
    apart: int
    median_with: float
    without_effects: float
    compared_median: float
    compared: int
    worst: float
    worst_id: str
    worst_value: float
    worst_value_id: str
    right: int
    statements: int


@dataclass(frozen=True, slots=True)
class PaperSummary:
    """What the records of a paper say together.

    Args:
        right: comparisons that come out as the paper says, of `comparisons`.
        predictions: the score.
    """

    right: int
    comparisons: int
    predictions: PredictionScore

    def plain(self) -> dict[str, Any]:
        """The summary as plain data."""
        return asdict(self)


def summarise(records: Sequence[TargetRecord], compared: Sequence[OrderComparison] = ()) -> PaperSummary:
    """All records of a paper, or of several, in one line."""
    single = [right for one in compared for _, right in one.comparisons]
    return PaperSummary(
        right=sum(single),
        comparisons=len(single),
        predictions=_predictions(records),
    )


def _predictions(records: Sequence[TargetRecord]) -> PredictionScore:
    predicted = [record for record in records if record.target.kind is TargetClass.PREDICTION]
    groups: dict[str, list[TargetRecord]] = {}
    for record in predicted:
        if record.target.score is ScoreKind.ERROR:
            groups.setdefault(record.target.leader or record.target.id, []).append(record)
    every = {id_: statistics.fmean(one.relative_error for one in group) for id_, group in groups.items()}
    apart = {id_ for id_, group in groups.items() if any(one.target.was_fitted for one in group)}
    errors = {id_: error for id_, error in every.items() if id_ not in apart}
    neutral = {
        id_: statistics.fmean(found)
        for id_ in errors
        if (found := [one.without_effects for one in groups[id_] if one.without_effects is not None])
    }
    worst = max(errors, key=lambda id_: errors[id_], default="")
    values = [(max(one.errors, default=1.0), one.target.id) for id_ in errors for one in groups[id_]]
    worst_value, worst_value_id = max(values, default=(math.nan, ""))
    statements = [record for record in predicted if record.target.score is ScoreKind.STATEMENT]
    return PredictionScore(
        median=_median(errors.values()),
        groups=len(errors),
        apart=len(apart),
        median_with=_median(every.values()),
        without_effects=_median(neutral.values()),
        compared_median=_median(errors[id_] for id_ in neutral),
        compared=len(neutral),
        worst=errors.get(worst, math.nan),
        worst_id=worst,
        worst_value=worst_value,
        worst_value_id=worst_value_id,
        right=sum(record.within for record in statements),
        statements=len(statements),
    )


def _median(errors: Iterable[float]) -> float:
    found = list(errors)
    return statistics.median(found) if found else math.nan


def _short(value: Value) -> Value:
    return value if isinstance(value, bool) else float(f"{value:.4g}")
