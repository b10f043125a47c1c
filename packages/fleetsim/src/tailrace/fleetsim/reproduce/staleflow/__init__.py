"""StaleFlow's tables: how each number is measured."""

from __future__ import annotations

from tailrace.fleetsim.reproduce.measures import Measure, Order
from tailrace.fleetsim.reproduce.staleflow import detail, speed


def measures(*, quick: bool) -> dict[str, Measure]:
    """Of every target."""
    return speed.measures(quick=quick) | detail.measures(quick=quick)


def orders(*, quick: bool) -> dict[str, Order]:
    """Of every statement on orders."""
    return speed.orders(quick=quick)
