"""The relays: which versions may be pulled, and when they have reached a replica's node.

A publish is complete on the master after the trainer's stall; the chain carries it on while the master already serves it. A
replica that asks for a version which has not reached its node waits for it, then loads it over PCIe (Laminar, section 4.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace import contracts as c

if TYPE_CHECKING:
    from tailrace.fleetsim.members.replica import Replica
    from tailrace.fleetsim.simulator import Simulation


class Relays:
    """All relays of a simulation.

    `waited_s` is the time replicas spent pulling, `pulls` how often they did.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.reached_s: dict[int, float] = {}
        self.waited_s = 0.0
        self.pulls = 0

    def published(self, command: c.Publish) -> None:
        """The trainer has handed a version to the master."""
        simulation = self.simulation
        self.reached_s[command.version] = simulation.now + simulation.fleet.weights.broadcast_s
        for version in [version for version in self.reached_s if version < command.version - 64]:
            del self.reached_s[version]
        simulation.post(c.Published(command.version, command.seq))

    def pull(self, replica: Replica, command: c.Pull) -> None:
        """A replica loads a version; an old one that no relay holds any more comes from its checkpoint."""
        simulation = self.simulation
        missing_s = max(0.0, self.reached_s.get(command.version, simulation.now) - simulation.now)
        takes_s = missing_s + simulation.fleet.weights.pull_s
        self.waited_s += takes_s
        self.pulls += 1
        incarnation, reason = replica.incarnation, simulation.torn(replica)

        def done(_: int) -> None:
            if replica.incarnation != incarnation or replica.hung:
                return
            if reason is None:
                replica.pulled(command)
            else:
                replica.pull_failed(command, reason)

        simulation.at(simulation.now + takes_s, done, 0)
