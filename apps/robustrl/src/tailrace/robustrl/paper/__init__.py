"""How each number printed in RobustRL's paper (2025) is measured in the simulator.

`targets.toml` has the printed numbers, `parameters.toml` the parameters, `systems` the fleets.
"""

from tailrace.robustrl.paper.measures import PAPER

__all__ = ["PAPER"]
