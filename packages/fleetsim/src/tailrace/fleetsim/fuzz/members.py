"""Members of a fuzz case: as in a simulation, and the checks see what they do."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tailrace import contracts as c
from tailrace.fleetsim.engine import Engine
from tailrace.fleetsim.members.relays import Relays
from tailrace.fleetsim.members.replica import Replica

if TYPE_CHECKING:
    from tailrace.fleetsim.fuzz.simulation import FuzzSimulation


class FuzzReplica(Replica):
    """A replica whose weights and work are watched, and whose aborts travel like its other messages.

    An abort is not in the chain of commands, so it may come after a route that was given later and brings the same
    trajectory anew (an evaluation that was stranded): what was routed later stays.
    """

    __slots__ = ("_routed_by",)
    simulation: FuzzSimulation

    def __init__(self, simulation: FuzzSimulation, id_: str, engine: Engine, speed: float) -> None:
        super().__init__(simulation, id_, engine, speed)
        self._routed_by: dict[str, int] = {}

    def start(self, now: float) -> None:
        """See `Replica.start`."""
        super().start(now)
        self._routed_by.clear()
        self.simulation.plane.drops_weights(self.id)
        self.simulation.messages.open(self.id)

    def die(self, now: float) -> None:
        """See `Replica.die`."""
        super().die(now)
        self.simulation.plane.drops_weights(self.id)

    def _route(self, command: c.Route) -> None:
        simulation = self.simulation
        self._routed_by |= dict.fromkeys([ref.trajectory for ref in command.trajectories], command.seq)
        complete = simulation.store.complete_of(command.trajectories)
        refs = tuple(ref for ref in command.trajectories if ref.trajectory not in complete)
        super()._route(dataclasses.replace(command, trajectories=refs) if complete else command)
        if complete:
            self.finished += len(complete)
            simulation.say(self, [c.Finished(self.id, *done, answers=command.seq) for done in complete.items()])
            self.flush()  # a snapshot comes after what it counts as finished
            self.reported = False
            self.idle_now()

    def aborted(self, command: c.Abort) -> None:
        """An abort has arrived."""
        if self.up and not self.hung:
            names = tuple(name for name in command.trajectories if self._routed_by.get(name, 0) < command.seq)
            self.abort(names)
            self.simulation.plane.drops(self.id, names)

    def _pull(self, command: c.Pull) -> None:
        self.simulation.plane.drops_weights(self.id)
        super()._pull(command)


class FuzzRelays(Relays):
    """Relays that may be down: pulls and publishes wait for the new one. What nobody keeps any more cannot be pulled."""

    simulation: FuzzSimulation

    def __init__(self, simulation: FuzzSimulation) -> None:
        super().__init__(simulation)
        self.down = False
        self._pulls: list[tuple[Replica, int, c.Pull]] = []
        self._publishes: list[tuple[int, c.Publish]] = []

    def published(self, command: c.Publish) -> None:
        """See `Relays.published`."""
        self.simulation.lineage.publishes(command.version)
        if self.down:
            self._publishes.append((self.simulation.trainer.incarnation, command))
        else:
            super().published(command)

    def pull(self, replica: Replica, command: c.Pull) -> None:
        """See `Relays.pull`."""
        if self.down:
            self._pulls.append((replica, replica.incarnation, command))
            return
        simulation = self.simulation
        simulation.plane.pulls(replica.id, command)
        simulation.pulled_version = command.version
        super().pull(replica, command)

    def die(self) -> None:
        """The relay is gone. What it was handing out is complete, since replicas resume a pull that broke off."""
        self.down = True

    def start(self) -> None:
        """A new relay serves; the trainer sends it the newest version again."""
        self.down = False
        publishes, self._publishes = self._publishes, []
        for incarnation, publish in publishes:
            if incarnation == self.simulation.trainer.incarnation:
                super().published(publish)
        pulls, self._pulls = self._pulls, []
        for replica, incarnation, pull in pulls:
            if replica.incarnation == incarnation and not replica.hung:
                self.pull(replica, pull)

    def forget(self) -> None:
        """The driver died, and the relays with it: none knows a version any more."""
        self._pulls, self._publishes, self.down = [], [], False
        self.reached_s.clear()
