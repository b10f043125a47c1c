"""How each number printed in StreamRL's paper (2025) is measured in the simulator.

`targets.toml` has the printed numbers, `parameters.toml` the parameters, `systems` the fleets.
"""

from __future__ import annotations

from tailrace.fleetsim.reproduce import OrderStatement, Paper, TargetMeasure
from tailrace.streamrl.paper import inputs, sections, speed
from tailrace.streamrl.paper.points import PACKAGE, PARAMETERS


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of all targets that are simulated, by the target's id."""
    found: dict[str, TargetMeasure] = {}
    for part in (inputs, speed, sections):
        found |= part.measures(quick=quick)
    return found


def orders(*, quick: bool) -> dict[str, OrderStatement]:  # noqa: ARG001  its statements are targets
    """No statements beside the targets."""
    return {}


PAPER = Paper("streamrl", PACKAGE, PARAMETERS, measures, orders)
