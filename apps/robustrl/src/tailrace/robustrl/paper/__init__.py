"""How each number printed in RobustRL's paper (2025) is measured in the simulator.

`targets.toml` has the printed numbers, `parameters.toml` the parameters, `systems` the fleets.
"""

from __future__ import annotations

from tailrace.fleetsim.reproduce import OrderStatement, Paper, TargetMeasure
from tailrace.robustrl.paper import faults, inputs
from tailrace.robustrl.paper.points import PACKAGE, PARAMETERS


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of all targets that are simulated, by the target's id."""
    return faults.measures(quick=quick) | inputs.measures(quick=quick)


def orders(*, quick: bool) -> dict[str, OrderStatement]:  # noqa: ARG001  its statements are targets
    """No statements beside the targets."""
    return {}


PAPER = Paper("robustrl", PACKAGE, PARAMETERS, measures, orders)
