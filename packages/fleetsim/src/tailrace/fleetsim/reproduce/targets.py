"""A paper's numbers: its table of targets and orderings, ``targets.toml``, as a model."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tailrace.fleetsim.errors import ReproductionError

Value = float | bool
MODES = ("sim", "sim_shape", "analytic", "unit")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a value may be off, one of four ways; none for what must hold exactly.

    Args:
        relative: share of the paper's value.
        absolute: in the value's unit.
        at_most: the paper gives an upper limit; this is it.
        between: the paper gives a range.
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
            return max(0.0, low / ours - 1.0 if ours > 0 else 1.0, ours / high - 1.0)
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

    @property
    def is_ratio(self) -> bool:
        """Whether it says how things stand to each other, and so does not depend on absolute speeds."""
        return self.unit in ("x", "ratio", "fraction")


@dataclass(frozen=True, slots=True)
class Ordering:
    """A statement of a paper on which system is better."""

    id: str
    section: str
    statement: str


def targets(package: str) -> list[Target]:
    """All targets of a paper, in its order.

    Raises:
        ReproductionError: the table is damaged.
    """
    return [_target(entry) for entry in _table(package)["target"]]


def orderings(package: str) -> list[Ordering]:
    """All statements of a paper on orders of systems."""
    return [Ordering(**entry) for entry in _table(package)["ordering"]]


def _table(package: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(package).joinpath("targets.toml").read_text(encoding="utf-8"))


def _target(entry: dict[str, Any]) -> Target:
    values, labels = entry["paper"], entry.get("labels", [])
    paper = tuple(values) if isinstance(values, list) else (values,)
    given = {key: entry[key] for key in ("relative", "absolute", "at_most", "between") if key in entry}
    if len(given) > 1 or (labels and len(labels) != len(paper)) or entry["mode"] not in MODES:
        raise ReproductionError(
            f"target {entry['id']}: found {sorted(given)}, {len(labels)} labels for {len(paper)} values and mode "
            f"{entry['mode']!r}, expected one tolerance at most, a label for each value and one of {', '.join(MODES)}"
        )
    if "between" in given:
        given["between"] = tuple(given["between"])
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
    )
