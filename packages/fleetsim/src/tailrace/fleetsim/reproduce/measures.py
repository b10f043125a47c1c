"""How a paper's number is measured: the points that it needs, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tailrace.fleetsim.reproduce.points import Point
from tailrace.fleetsim.reproduce.probes import ProbeFindings
from tailrace.fleetsim.reproduce.targets import Value

Found = Mapping[Point, ProbeFindings]


@dataclass(frozen=True, slots=True)
class TargetMeasure:
    """One target.

    Args:
        points: simulations that it needs.
        of: its values, in the order of the target's.
    """

    points: Sequence[Point]
    of: Callable[[Found], Sequence[Value]]


@dataclass(frozen=True, slots=True)
class OrderStatement:
    """A statement on orders, as single comparisons.

    Args:
        points: simulations that it needs.
        of: each comparison in words, and whether it comes out as the paper says.
    """

    points: Sequence[Point]
    of: Callable[[Found], Sequence[tuple[str, bool]]]
