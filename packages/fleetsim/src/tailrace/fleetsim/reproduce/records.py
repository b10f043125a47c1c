"""Ours beside the paper's: records, and what they say together."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tailrace.fleetsim.reproduce.targets import Target, Value


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """One target and what the simulator finds.

    Args:
        ours: in the order of the target's values; None where it could not be measured.
        errors: relative error of each value.
        held_out: whether no free parameter was chosen on it.
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
        return all(map(self.target.tolerance.holds, self.target.paper, self.ours))

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
    errors = () if ours is None else tuple(map(target.tolerance.error, target.paper, ours))
    return TargetRecord(target, None if ours is None else tuple(ours), errors, target.id not in fitted, failed)


@dataclass(frozen=True, slots=True)
class OrderComparison:
    """A statement on orders: each comparison in words, and whether it is as the paper says."""

    id: str
    statement: str
    comparisons: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class PaperSummary:
    """What the records of a paper say together.

    Args:
        median_error: of held-out targets that are ratios; None if there are none.
        ratios: how many those are.
        within: targets within their tolerance, of `targets`.
        held_out_within: of those held out, of `held_out`.
        right: comparisons that come out as the paper says, of `comparisons`.
    """

    median_error: float | None
    ratios: int
    within: int
    targets: int
    held_out_within: int
    held_out: int
    right: int
    comparisons: int

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
    )


def _short(value: Value) -> Value:
    return value if isinstance(value, bool) else float(f"{value:.4g}")
