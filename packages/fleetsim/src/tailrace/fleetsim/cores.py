"""Members that share processor cores slow each other down: a laptop, not a fleet.

With more members computing than there are cores, each gets an equal share: the operating system's processor sharing. What
others need beside them (data, scoring, relays, the driver) comes off the cores: `tailrace profile` measures it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.fleetsim.simulator import Simulation


class Cores:
    """Who computes on shared cores.

    Args:
        count: cores; None where every member has devices of its own.
    """

    def __init__(self, simulation: Simulation, count: float | None) -> None:
        self._simulation, self._count = simulation, count
        self._share = 1.0
        self._dirty = False

    def changed(self) -> None:
        """Somebody began or stopped computing."""
        self._dirty = self._count is not None

    def settle(self) -> None:
        """Give everybody their share, if that has changed."""
        if not self._dirty:
            return
        self._dirty = False
        assert self._count is not None
        simulation = self._simulation
        fleet = simulation.fleet
        wanted = fleet.replica_cores * sum(replica.busy for replica in simulation.replicas.values())
        wanted += fleet.trainer_cores * simulation.trainer.computing
        share = min(1.0, self._count / wanted) if wanted else 1.0
        if share == self._share:
            return
        self._share = share
        simulation.trainer.set_speed(share)
        for replica in simulation.replicas.values():
            if replica.up and not replica.hung:
                replica.engine.advance(simulation.now)
                replica.flush()
                replica.set_speed(share * replica.speed, simulation.now)
