"""Charts as plain Plotly objects. A colour ``$name`` is the style sheet's, so that themes can change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Trace = dict[str, Any]
LAG_COLORS = ("$generating", "$training", "$pulling", "$releasing", "$evaluating", "$down")
"""Colors by versions behind the trainer."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart.

    Args:
        layout: laid over the common layout of ``page.js``.
        height: pixels.
    """

    id: str
    title: str
    data: list[Trace]
    layout: dict[str, Any]
    note: str = ""
    height: int = 280
    wide: bool = False


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Seconds in the unit that suits a run of this length."""

    unit: str
    seconds: float

    @classmethod
    def for_length(cls, length_s: float) -> TimeAxis:
        """Seconds up to ten minutes, minutes up to five hours, then hours."""
        if length_s <= 600:
            return cls("s", 1.0)
        return cls("min", 60.0) if length_s <= 5 * 3600 else cls("h", 3600.0)

    def __call__(self, seconds: float) -> float:
        """A time in the unit."""
        return round(seconds / self.seconds, 4)


def line(x: Sequence[float], y: Sequence[Any], name: str, color: str, **more: Any) -> Trace:
    """A line."""
    style = {"color": color, "width": more.pop("width", 2), **more.pop("line", {})}
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "name": name, "line": style, **more}


def bars(x: Sequence[Any], y: Sequence[float], name: str, color: str, **more: Any) -> Trace:
    """Vertical bars."""
    return {"type": "bar", "x": list(x), "y": list(y), "name": name, "marker": {"color": color}, **more}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with a title."""
    return {"title": {"text": title}, **more}


def step_axis(steps: int) -> dict[str, Any]:
    """An axis of steps: whole numbers only."""
    return axis("step", **({"dtick": 1} if steps <= 12 else {}), tickformat="d")


def thinned(points: Sequence[Any], most: int) -> list[Any]:
    """Choose at most `most` points (two or more) at even distances, with the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[place * (len(points) - 1) // (most - 1)] for place in range(most)]
