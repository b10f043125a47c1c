"""How each number printed in StaleFlow's paper is measured in the simulator.

`targets.toml` has the printed numbers, `parameters.toml` the fitted parameters, `systems` the fleets.
"""

from __future__ import annotations

from tailrace.fleetsim.reproduce import OrderStatement, Paper, TargetMeasure
from tailrace.staleflow.paper import detail, speed
from tailrace.staleflow.paper.points import PACKAGE, PARAMETERS


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of all targets, by the target's id."""
    return speed.measures(quick=quick) | detail.measures(quick=quick)


def orders(*, quick: bool) -> dict[str, OrderStatement]:
    """Return the check of each statement that compares systems, by the statement's id."""
    return speed.orders(quick=quick)


PAPER = Paper("staleflow", PACKAGE, PARAMETERS, measures, orders)
