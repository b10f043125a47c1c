"""Generation in another datacenter, on other devices: throughput over cost, and what the link costs (section 7.3)."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure
from tailrace.streamrl.paper.points import LENGTHS, across, asynchronous
from tailrace.streamrl.paper.speed import step_s

MACHINE_COST = {"H800": 2.85, "H20": 1.0}
"""Table 1, for a machine of eight."""

TRANSFER_S = 10.0
"""Seconds that a version of 72B takes at most over the link, by the paper."""


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets of section 7.3."""
    home = {length: asynchronous("7B", length, quick=quick) for length in LENGTHS}
    far = {length: across("7B", length, quick=quick) for length in LENGTHS}
    large = across("72B", "20K", quick=quick)
    return {
        "SR-COST": TargetMeasure([*home.values(), *far.values()], lambda lab: _ends(lab, home, far)),
        "SR-XDC": TargetMeasure((), lambda _: [_crosses_s(large)]),
        "SR-XDC-share": TargetMeasure([large], lambda lab: [TRANSFER_S / step_s(lab, large)]),
    }


def _ends(found: Found, home: Mapping[str, Point], far: Mapping[str, Point]) -> list[float]:
    gains = [_cost(found, home[length]) / _cost(found, far[length]) for length in home]
    return [min(gains), max(gains)]


def _cost(found: Found, at: Point) -> float:
    """Cost of an iteration, in hours of a machine with H20."""
    result = found[at].result
    return result.step_s * sum(count / 8 * MACHINE_COST[kind] for kind, count in result.devices.items())


def _crosses_s(at: Point) -> float:
    """Seconds that a version takes over the link alone."""
    near, far = (build_fleet(point.config()).pools[0].weights for point in (at.over(fleet__rollout__site=""), at))
    return far.broadcast_s - near.broadcast_s
