"""Ours beside the paper's: records, and what they say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tailrace.fleetsim.reproduce.targets import Score, Target, TargetClass, Value


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """One target and what the simulator finds.

    Args:
        ours: in the order of the target's values; None where it could not be measured.
        errors: relative error of each value.
        held_out: whether no free parameter was chosen on it; of targets with classes, whether it is a prediction.
        failed: why it could not be measured.
    """

    target: Target
    ours: tuple[Value, ...] | None
    errors: tuple[float, ...]
    held_out: bool
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
        """As data: single values as such, several as lists."""
        target = self.target
        single = len(target.paper) == 1
        ours = None if self.ours is None else [_short(value) for value in self.ours]
        return {
            "id": target.id,
            "paper": target.paper[0] if single else list(target.paper),
            "ours": ours[0] if ours is not None and single else ours,
            "relative_error": round(self.relative_error, 4),
            "held_out": self.held_out,
            "class": None if target.kind is None else target.kind.value,
            "score": target.score.value,
            "with": target.leader,
            "unit": target.unit,
            "ratio": target.is_ratio,
            "mode": target.mode,
            "section": target.section,
            "metric": target.metric,
            "labels": list(target.labels),
            "errors": [round(error, 4) for error in self.errors],
            "tolerance": str(target.tolerance),
            "within": self.within,
            "reason": self.failed or (None if self.within else target.reason),
        }


def record(
    target: Target, ours: Sequence[Value] | None, fitted: Collection[str], failed: str | None = None
) -> TargetRecord:
    """What was found for a target."""
    errors = () if ours is None else tuple(_errors(target, ours))
    held_out = target.id not in fitted if target.kind is None else target.kind is TargetClass.PREDICTION
    return TargetRecord(target, None if ours is None else tuple(ours), errors, held_out, failed)


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
class Predictions:
    """The score of a paper whose targets were classed before anything was simulated.

    Targets that are nearly the same measurement count once, with their mean error. What could not be measured has an error
    of 1, or is wrong.

    Args:
        median: of their errors.
        groups: how many errors those are.
        without_effects: the median of a simulator without effects, over the groups where that means something.
        compared: how many those are.
        compared_median: ours over the same groups.
        worst: the largest error, of the group that `worst_id` leads.
        worst_value: the largest error of a single value, of the target `worst_value_id`.
        right: statements and limits that are right, of `statements`.
    """

    median: float
    groups: int
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
        median_error: of held-out targets that are ratios; None if there are none.
        ratios: how many those are.
        within: targets within their tolerance, of `targets`.
        held_out_within: of those held out, of `held_out`.
        right: comparisons that come out as the paper says, of `comparisons`.
        predictions: what the predictions say together; None where a paper's targets have no classes.
    """

    median_error: float | None
    ratios: int
    within: int
    targets: int
    held_out_within: int
    held_out: int
    right: int
    comparisons: int
    predictions: Predictions | None = None

    def plain(self) -> dict[str, Any]:
        """As data."""
        return asdict(self)


def summarise(records: Sequence[TargetRecord], compared: Sequence[OrderComparison] = ()) -> PaperSummary:
    """All records of a paper, or of several, in one line."""
    held_out = [record for record in records if record.held_out]
    ratios = [record.relative_error for record in held_out if record.target.is_ratio]
    single = [right for one in compared for _, right in one.comparisons]
    return PaperSummary(
        median_error=statistics.median(ratios) if ratios else None,
        ratios=len(ratios),
        within=sum(record.within for record in records),
        targets=len(records),
        held_out_within=sum(record.within for record in held_out),
        held_out=len(held_out),
        right=sum(single),
        comparisons=len(single),
        predictions=_predictions(records),
    )


def _predictions(records: Sequence[TargetRecord]) -> Predictions | None:
    scored = [record for record in records if record.target.kind is TargetClass.PREDICTION]
    groups: dict[str, list[TargetRecord]] = {}
    for record in scored:
        if record.target.score is Score.ERROR:
            groups.setdefault(record.target.leader or record.target.id, []).append(record)
    if not groups:
        return None
    errors = {id_: statistics.fmean(one.relative_error for one in group) for id_, group in groups.items()}
    neutral = {
        id_: statistics.fmean(found)
        for id_, group in groups.items()
        if (found := [one.without_effects for one in group if one.without_effects is not None])
    }
    worst = max(errors, key=lambda id_: errors[id_])
    values = [(max(one.errors, default=1.0), one.target.id) for group in groups.values() for one in group]
    worst_value, worst_value_id = max(values)
    statements = [record for record in scored if record.target.score is Score.STATEMENT]
    return Predictions(
        median=statistics.median(errors.values()),
        groups=len(errors),
        without_effects=statistics.median(neutral.values()) if neutral else math.nan,
        compared_median=statistics.median(errors[id_] for id_ in neutral) if neutral else math.nan,
        compared=len(neutral),
        worst=errors[worst],
        worst_id=worst,
        worst_value=worst_value,
        worst_value_id=worst_value_id,
        right=sum(record.within for record in statements),
        statements=len(statements),
    )


def _short(value: Value) -> Value:
    return value if isinstance(value, bool) else float(f"{value:.4g}")
