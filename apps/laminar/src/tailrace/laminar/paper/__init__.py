"""How each number printed in Laminar's paper (EuroSys '26) is measured in the simulator.

`targets.toml` has the printed numbers, `parameters.toml` the fitted parameters, `systems` the fleets.
"""

from __future__ import annotations

from tailrace.fleetsim.reproduce import OrderStatement, Paper, TargetMeasure
from tailrace.laminar.paper import sections, speed
from tailrace.laminar.paper.points import PACKAGE, PARAMETERS


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of all targets, by the target's id."""
    math, tool = (speed.Speeds.of_task(tool=tool, quick=quick) for tool in (False, True))
    return speed.measures(math, tool) | sections.measures(quick=quick)


def orders(*, quick: bool) -> dict[str, OrderStatement]:
    """The checks of all statements on orders, by the statement's id."""
    return speed.orders(*(speed.Speeds.of_task(tool=tool, quick=quick) for tool in (False, True)))


PAPER = Paper("laminar", PACKAGE, PARAMETERS, measures, orders)
