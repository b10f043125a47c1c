"""How each number printed in RollPacker's paper (NSDI '26) is measured in the simulator.

`targets.toml` has the printed numbers, `parameters.toml` the parameters, `systems` the fleets.
"""

from __future__ import annotations

from tailrace.fleetsim.reproduce import OrderStatement, Paper, TargetMeasure
from tailrace.rollpacker.paper import mechanisms, rounds, speed
from tailrace.rollpacker.paper.points import PACKAGE, PARAMETERS


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of all targets that are simulated, by the target's id."""
    found = rounds.baseline_measures(quick=quick)
    for part in (rounds, speed, mechanisms):
        found |= part.measures(quick=quick)
    return found


def orders(*, quick: bool) -> dict[str, OrderStatement]:  # noqa: ARG001  its statements are targets
    """No statements beside the targets."""
    return {}


PAPER = Paper("rollpacker", PACKAGE, PARAMETERS, measures, orders)
