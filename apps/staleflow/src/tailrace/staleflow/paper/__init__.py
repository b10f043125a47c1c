"""How each number printed in StaleFlow's paper is measured in the simulator.

`targets.toml` has the printed numbers, `parameters.toml` the fitted parameters, `systems` the fleets.
"""

from tailrace.staleflow.paper.measures import PAPER

__all__ = ["PAPER"]
