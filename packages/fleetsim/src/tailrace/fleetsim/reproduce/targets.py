"""A paper's numbers: its table of targets and orderings, ``targets.toml``, as a model."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from importlib import resources
from typing import Any

from tailrace.fleetsim.errors import ReproductionError

Value = float | bool
MODES = ("sim", "sim_shape", "analytic", "unit", "runtime", "input", "out")


class TargetClass(StrEnum):
    """What a target is used for. Only predictions count.

    `FIT`: free parameters may be chosen on it. `INPUT`: a constant that is put in. `IDENTITY`: holds by construction.
    `RUNTIME`: needs a real run. `OUT`: cannot be reproduced here.
    """

    PREDICTION = "prediction"
    FIT = "fit"
    INPUT = "input"
    IDENTITY = "identity"
    RUNTIME = "runtime"
    OUT = "out"


NOT_SIMULATED = (TargetClass.RUNTIME, TargetClass.OUT)


class ScoreKind(StrEnum):
    """How a prediction counts: by its relative error, or as right or wrong."""

    ERROR = "error"
    STATEMENT = "statement"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a value may be off, one of four ways; none for what must hold exactly.

    Args:
        relative: share of the paper's value.
        absolute: in the value's unit.
        at_most: the paper gives an upper limit; this is it.
        between: the paper gives a range; the error is the distance beyond it, relative to the nearer end.
    """

    relative: float | None = None
    absolute: float | None = None
    at_most: float | None = None
    between: tuple[float, float] | None = None

    def error(self, paper: Value, ours: Value) -> float:
        """Relative error: of a limit or a range, how far ours is beyond it; of a truth, 0 or 1."""
        if isinstance(paper, bool):
            return float(ours is not paper)
        if self.at_most is not None:
            return max(0.0, ours / self.at_most - 1.0)
        if self.between is not None:
            low, high = self.between
            return max(0.0, 1.0 - ours / low if low else 0.0, ours / high - 1.0)
        return abs(ours - paper) / abs(paper)

    def holds(self, paper: Value, ours: Value) -> bool:
        """Whether ours is near enough."""
        error = self.error(paper, ours)
        if self.relative is not None:
            return error <= self.relative
        if self.absolute is not None:
            return abs(ours - paper) <= self.absolute
        return error == 0.0

    def __str__(self) -> str:
        if self.relative is not None:
            return f"±{self.relative:.0%}"
        if self.absolute is not None:
            return f"±{self.absolute:g}"
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        if self.between is not None:
            return f"{self.between[0]:g} to {self.between[1]:g}"
        return "exact"


@dataclass(frozen=True, slots=True)
class Target:
    """A number, several that belong together, or a statement of a paper.

    Args:
        id: unique.
        section: where it stands.
        metric: what it is.
        paper: its values.
        labels: what each of several values is.
        unit: ``x``, ``ratio`` and ``fraction`` are ratios; others are not.
        mode: how it can be checked.
        reason: why ours misses it, where it does.
        kind: its class.
        score: how it counts if it is a prediction.
        leader: the target that is nearly the same measurement; both have one class and count once, with their mean error.
        without_effects: what a simulator without effects says, every speed-up 1 and every gain 0; None where that means
            nothing.
        tolerances: one for each value, where the paper gives a range for each.
        was_fitted: whether parameters were once chosen on it although it is a prediction: its error stands apart.
    """

    id: str
    section: str
    metric: str
    paper: tuple[Value, ...]
    labels: tuple[str, ...]
    unit: str
    tolerance: Tolerance
    mode: str
    reason: str | None = None
    kind: TargetClass = TargetClass.PREDICTION
    score: ScoreKind = ScoreKind.ERROR
    leader: str | None = None
    without_effects: float | None = None
    tolerances: tuple[Tolerance, ...] = ()
    was_fitted: bool = False

    def tolerance_of(self, index: int) -> Tolerance:
        """The tolerance of one of its values."""
        return self.tolerances[index] if self.tolerances else self.tolerance

    @property
    def scored(self) -> bool:
        """Whether it counts."""
        return self.kind is TargetClass.PREDICTION and not self.was_fitted


@dataclass(frozen=True, slots=True)
class Ordering:
    """A statement of a paper on which system is better."""

    id: str
    section: str
    statement: str


@dataclass(frozen=True, slots=True)
class Amendment:
    """A change of a class or a measure, or of the simulator's structure after a prediction that it moves was seen.

    Args:
        date: when it was made.
        what: one sentence.
        why: its ground, which is not that a prediction is missed.
        moves: targets that it moves; empty for many.
    """

    date: date
    what: str
    why: str
    moves: tuple[str, ...] = ()


def changes(package: str) -> list[Amendment]:
    """The changes of a paper's score since its targets were classed, oldest first: its table ``change``.

    Raises:
        ReproductionError: one has no date or no ground, or names no target.
    """
    table, found = _table(package), []
    known = {entry["id"] for entry in table["target"]}
    for entry in table.get("change", ()):
        one = Amendment(entry.get("date"), entry.get("what", ""), entry.get("why", ""), tuple(entry.get("moves", ())))
        if type(one.date) is not date or len(one.what) < 10 or len(one.why) < 10 or not known.issuperset(one.moves):
            raise ReproductionError(f"change {entry!r:.200}: expected a date, what, why, and targets that it moves")
        found.append(one)
    return sorted(found, key=lambda one: one.date)


def targets(package: str) -> list[Target]:
    """All targets of a paper, in its order.

    Raises:
        ReproductionError: the table is damaged.
    """
    return [_target(entry) for entry in _table(package)["target"]]


def orderings(package: str) -> list[Ordering]:
    """All statements of a paper on orders of systems."""
    return [Ordering(**entry) for entry in _table(package).get("ordering", ())]


def _table(package: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(package).joinpath("targets.toml").read_text(encoding="utf-8"))


def _target(entry: Mapping[str, Any]) -> Target:
    values, labels = entry["paper"], entry.get("labels", [])
    paper = tuple(values) if isinstance(values, list) else (values,)
    given = {key: entry[key] for key in ("relative", "absolute", "at_most", "between", "ranges") if key in entry}
    if len(given) > 1 or (labels and len(labels) != len(paper)) or entry["mode"] not in MODES:
        raise ReproductionError(
            f"target {entry['id']}: found {sorted(given)}, {len(labels)} labels for {len(paper)} values and mode "
            f"{entry['mode']!r}, expected one tolerance at most, a label for each value and one of {', '.join(MODES)}"
        )
    ranges = given.pop("ranges", [])
    if ranges and len(ranges) != len(paper):
        raise ReproductionError(
            f"target {entry['id']}: found {len(ranges)} ranges for {len(paper)} values, expected one each"
        )
    if "between" in given:
        given["between"] = tuple(given["between"])
    if entry.get("class") not in list(TargetClass):
        classes = ", ".join(TargetClass)
        raise ReproductionError(f"target {entry['id']}: found class {entry.get('class')!r}, expected one of {classes}")
    return Target(
        id=entry["id"],
        section=entry["section"],
        metric=entry["metric"],
        paper=paper,
        labels=tuple(labels),
        unit=entry["unit"],
        tolerance=Tolerance(**given),
        mode=entry["mode"],
        reason=entry.get("reason"),
        kind=TargetClass(entry["class"]),
        score=ScoreKind(entry.get("score", "error")),
        leader=entry.get("with"),
        without_effects=entry.get("without_effects"),
        tolerances=tuple(Tolerance(between=(low, high)) for low, high in ranges),
        was_fitted=entry.get("was_fitted", False),
    )
