"""Laminar's tables (EuroSys '26): how each number is measured."""

from __future__ import annotations

from tailrace.fleetsim.reproduce.laminar import failures, idle, repacking, speed, splits, staleness, weights
from tailrace.fleetsim.reproduce.measures import Measure, Order


def measures(*, quick: bool) -> dict[str, Measure]:
    """Of every target."""
    math, tool = (speed.Speeds.of_task(tool=tool, quick=quick) for tool in (False, True))
    found = speed.measures(math, tool)
    for part in (idle, weights, staleness, repacking, failures, splits):
        found |= part.measures(quick=quick)
    return found


def orders(*, quick: bool) -> dict[str, Order]:
    """Of every statement on orders."""
    return speed.orders(*(speed.Speeds.of_task(tool=tool, quick=quick) for tool in (False, True)))
