"""The executor in virtual time: carries commands out on modelled members and reports events to the production controller.

    heap of (time, what happens) ──► members ──► events of one instant ──► Controller.handle_all ──► commands ──► members

Nothing is random here but what a seed decides beforehand (lengths, failures). The same seed gives the same event log.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tailrace import contracts as c
from tailrace.fleetsim.cores import Cores
from tailrace.fleetsim.errors import StalledError
from tailrace.fleetsim.fleet import Fleet
from tailrace.fleetsim.members.relays import Relays
from tailrace.fleetsim.members.replica import Replica
from tailrace.fleetsim.members.trainer import Trainer
from tailrace.fleetsim.recorder import Recorder
from tailrace.fleetsim.tokens import Tokens
from tailrace.pipeline.controller.controller import RELAY, REPLICA, TRAINER, Controller

IDLE_TICKS = 2_000  # a fleet in which so long nothing is under way will never move again


class Observer(Protocol):
    """Sees every event with the commands that followed, as on the real executors."""

    def observe(self, now: float, event: c.Event, commands: Sequence[c.Command], controller: Controller) -> None:
        """One event was handled."""
        ...


class Transport(Protocol):
    """How messages travel between the controller and a member: late, in another order, twice, or not until later."""

    def command(self, replica: str, now: float) -> Sequence[float]:
        """When a command sent now arrives: once, or more often."""
        ...

    def report(self, replica: str, now: float) -> float:
        """When a report sent now arrives; those of one member keep their order."""
        ...


class Simulation:
    """One run.

    Args:
        fleet: what it runs on.
        observer: sees events and commands.
        transport: how messages travel; at once if None.
        keep_events: keep the event log, for replays and comparisons.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        observer: Observer | None = None,
        transport: Transport | None = None,
        keep_events: bool = True,
    ) -> None:
        self.fleet, self.observer, self.transport, self.keep_events = fleet, observer, transport, keep_events
        self.controller = Controller(fleet.spec)
        self.tokens = Tokens(fleet.workload, fleet.samples, mixes_versions=fleet.spec.sync.mixes_versions)
        self.report_s = fleet.delays.report_s
        self.now = 0.0
        self.replicas: dict[str, Replica] = {}
        self.trainer = Trainer(self)
        self.relays = Relays(self)
        self.cores = Cores(self, fleet.cores)
        self.recorder = Recorder(self)
        self.log: list[tuple[float, list[c.Event]]] = []
        self.torn_pulls: dict[str, int] = {}
        self.lose_checkpoints = 0
        self.durable = -1
        self.handled = 0
        self._trained: dict[int, list[str]] = {}
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = 0
        self._inbox: list[c.Event] = []
        self._idle_ticks = 0
        self._carry_out: dict[type, Callable[[Any], None]] = {
            c.Start: self._start,
            c.Restart: self._start,
            c.Route: self._to_replica,
            c.Interrupt: self._to_replica,
            c.Pull: self._to_replica,
            c.Abort: self._abort,
            c.Score: self._score,
            c.Publish: self.trainer.take,
            c.Checkpoint: self.trainer.take,
            c.Accumulate: self.trainer.take,
            c.Step: self.trainer.take,
        }

    # ---- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """To the end of the run, or to the controller's failure.

        Raises:
            StalledError: nothing is under way and nothing will be.
        """
        thresholds = gc.get_threshold()
        gc.set_threshold(1_000_000, *thresholds[1:])  # millions of objects come and go, and none of them in a cycle
        try:
            self._run()
        finally:
            gc.set_threshold(*thresholds)
        self.recorder.close()

    def _run(self) -> None:
        heap, pop = self._heap, heapq.heappop
        self.post(c.Tick())
        self.at(self.fleet.delays.snapshot_s, self._tick, 0)
        while not self._over():
            if self._inbox:
                self._deliver()
                self.cores.settle()
                continue
            if not heap:
                raise StalledError(self._stalled())
            self.now = heap[0][0]
            while heap and heap[0][0] <= self.now:
                _, _, happens, argument = pop(heap)
                happens(argument)
            self.cores.settle()

    def _over(self) -> bool:
        controller, batches = self.controller, self.fleet.batches
        enough = batches is not None and batches < self.fleet.spec.steps and len(self.recorder.rows) >= batches
        return enough or controller.finished or controller.failure is not None

    def at(self, when: float, happens: Callable[[Any], None], argument: Any) -> None:
        """Something happens at a time, not before now."""
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, happens, argument))

    def post(self, event: c.Event) -> None:
        """An event reaches the controller at this instant."""
        self._inbox.append(event)

    def say(self, replica: Replica, events: Sequence[c.Event]) -> None:
        """A replica reports."""
        if not events:
            return
        if self.transport is None:
            self._inbox.extend(events)
        else:
            arrival = self.transport.report(replica.id, self.now)
            self.at(arrival, self._arrive, (replica, replica.incarnation, events))

    def _arrive(self, report: tuple[Replica, int, Sequence[c.Event]]) -> None:
        replica, incarnation, events = report
        if replica.incarnation == incarnation:
            self._inbox.extend(events)

    def _deliver(self) -> None:
        events, self._inbox = self._inbox, []
        now = self.now
        if self.keep_events:
            self.log.append((now, events))
        self.handled += len(events)
        commands = self.controller.handle_all(events, now)
        if self.observer is not None:
            for event in events[:-1]:
                self.observer.observe(now, event, (), self.controller)
            self.observer.observe(now, events[-1], commands, self.controller)
        carry_out = self._carry_out
        for command in commands:
            carrying = carry_out.get(type(command))
            if carrying is not None:
                carrying(command)

    def _tick(self, _: int) -> None:
        now = self.now
        for replica in self.replicas.values():
            if replica.up and not replica.hung and not replica.reported:
                replica.engine.advance(now)
                replica.flush()
                self.say(replica, [replica.snapshot()])
        self._inbox.append(c.Tick())
        self.fleet.failures.strike(self)
        self._idle_ticks = 0 if self._heap else self._idle_ticks + 1
        if self._idle_ticks > IDLE_TICKS:
            raise StalledError(self._stalled())
        self.at(now + self.fleet.delays.snapshot_s, self._tick, 0)

    def _stalled(self) -> str:
        ledger, learner = self.controller.ledger, self.controller.learner
        return (
            f"after {self.now:.0f} s nothing is under way: trainer at version {learner.version} of "
            f"{self.fleet.spec.steps}, {ledger.pooled} trajectories wait for a replica, {len(ledger.buffered)} groups for "
            f"the trainer; expected somebody to work"
        )

    # ---- commands -------------------------------------------------------------------------------------------------

    def _start(self, command: c.Start | c.Restart) -> None:
        delays, rollout = self.fleet.delays, self.fleet.rollout
        again = isinstance(command, c.Restart)
        if command.role == REPLICA:
            if command.id not in self.replicas:
                self.replicas[command.id] = self.new_replica(command.id)
            self.replicas[command.id].starting = True
            takes_s = rollout.restart_s if again else rollout.start_s
        else:
            takes_s = delays.trainer_restart_s if again and command.role == TRAINER else 0.0
        if command.role == TRAINER:
            self.trainer.die()
            self.trainer.starting = True
        self.at(self.now + takes_s, self._up, (command, self._incarnation(command.role, command.id)))

    def new_replica(self, name: str) -> Replica:
        """A replica that has not started."""
        return Replica(self, name, self.fleet.engine(self.now), self.fleet.speed(name))

    def _incarnation(self, role: str, member: str) -> int:
        if role == REPLICA:
            return self.replicas[member].incarnation
        return self.trainer.incarnation if role == TRAINER else 0

    def _up(self, started: tuple[c.Start | c.Restart, int]) -> None:
        command, incarnation = started
        if self._incarnation(command.role, command.id) != incarnation:
            return  # it died while it was starting
        version = None
        if command.role == REPLICA:
            replica = self.replicas[command.id]
            replica.start(self.now)
            replica.set_speed(replica.speed, self.now)
        elif command.role == TRAINER:
            version = max(getattr(command, "version", None) or 0, 0)
            self.trainer.start(version)
            for undone in [made for made in self._trained if made > version]:
                del self._trained[undone]
        self.post(c.Up(command.role, command.id, version, command.seq))

    def _to_replica(self, command: c.Route | c.Interrupt | c.Pull) -> None:
        replica = self.replicas[command.replica]
        delay = self.fleet.delays.route_s
        if self.transport is None and not delay:
            replica.receive(command)
            return
        arrivals = [self.now] if self.transport is None else self.transport.command(replica.id, self.now)
        incarnation = replica.incarnation
        for arrival in arrivals:
            self.at(arrival + delay, self._received, (replica, incarnation, command))

    def _received(self, sent: tuple[Replica, int, c.Route | c.Interrupt | c.Pull]) -> None:
        replica, incarnation, command = sent
        if replica.incarnation == incarnation:
            replica.receive(command)

    def _abort(self, command: c.Abort) -> None:
        holders: dict[str, list[str]] = {}
        for name in command.trajectories:
            known = self.tokens.trajectories.get(name)
            if known is not None and not known.response:
                holders.setdefault(known.replica, []).append(name)
        for holder, names in holders.items():
            self.replicas[holder].abort(tuple(names))
        self.tokens.forget(command.trajectories)

    def _score(self, command: c.Score) -> None:
        known, delay = self.tokens.trajectories, self.fleet.delays.reward_s
        at_once = []
        for name in command.trajectories:
            slower = known[name].sample.reward_s if name in known else 0.0
            if slower:
                self.at(self.now + delay + slower, self._scored, (name,))
            else:
                at_once.append(name)
        if delay:
            self.at(self.now + delay, self._scored, at_once)
        else:
            self._scored(at_once)

    def _scored(self, names: Sequence[str]) -> None:
        known, inbox = self.tokens.trajectories, self._inbox
        for name in names:
            trajectory = known.get(name)
            if trajectory is not None:
                inbox.append(c.Scored(name, trajectory.sample.reward))
                if name[0] == "e":
                    self.tokens.forget((name,))

    # ---- what members did -----------------------------------------------------------------------------------------

    def stepped(self, command: c.Step, batch: list[str], wall_s: float, lags: dict[int, int]) -> None:
        """The trainer holds a new version."""
        self._trained[command.version] = batch
        self.recorder.stepped(command.version, batch, lags)
        self.fleet.failures.strike(self)
        metrics = {"staleness_max": float(max(lags, default=0)), "wall_s": wall_s}
        self.post(c.Stepped(command.version, metrics, command.seq))

    def checkpoint(self, command: c.Checkpoint) -> None:
        """A checkpoint has been copied; it is durable later."""
        incarnation = self.trainer.incarnation

        def durable(_: int) -> None:
            if self.trainer.incarnation != incarnation:
                return
            if self.lose_checkpoints:
                self.lose_checkpoints -= 1
                self.trainer.die()
                self.cores.changed()
                self.post(c.Down(TRAINER, "0", f"the checkpoint of version {command.version} could not be written"))
            else:
                self._durable(command)

        self.at(self.now + self.fleet.delays.checkpoint_s, durable, 0)

    def _durable(self, command: c.Checkpoint) -> None:
        self.durable = max(self.durable, command.version)
        for version in [version for version in self._trained if version <= command.version]:
            self.tokens.forget(self._trained.pop(version))
        self.post(c.Durable(command.version, command.seq))

    def torn(self, replica: Replica) -> str | None:
        """Whether the next pull of a replica arrives damaged, and how."""
        if self.torn_pulls.get(replica.id, 0):
            self.torn_pulls[replica.id] -= 1
            return "a chunk's checksum does not match"
        return None

    # ---- faults ---------------------------------------------------------------------------------------------------

    def kill(self, role: str, member: str) -> None:
        """A member dies; the executor notices after a while."""
        if role == REPLICA:
            replica = self.replicas.get(member)
            if replica is None or not (replica.up or replica.starting):
                return
            replica.die(self.now)
        elif role == TRAINER:
            if not (self.trainer.up or self.trainer.starting):
                return
            self.trainer.die()
        self.cores.changed()
        self.at(self.now + self.fleet.delays.detect_s, self.post, c.Down(role, member, "killed"))

    def hang(self, role: str, member: str) -> None:
        """A member answers nothing any more; after its deadline it is killed and reported."""
        if role == REPLICA:
            replica = self.replicas.get(member)
            if replica is None or not replica.up:
                return
            replica.hang(self.now)
            incarnation = replica.incarnation
        elif role == TRAINER and self.trainer.up:
            self.trainer.hang()
            incarnation = self.trainer.incarnation
        else:
            return
        self.cores.changed()
        silent_s = self.fleet.delays.hang_s
        self.at(self.now + silent_s / 2, self.post, c.Suspect(role, member, silent_s / 2))
        self.at(self.now + silent_s, self.give_up, (role, member, incarnation, silent_s))

    def give_up(self, hung: tuple[str, str, int, float]) -> None:
        """A member of an incarnation has been silent for so long that it counts as dead: it is, from now on."""
        role, member, incarnation, silent_s = hung
        if role == REPLICA:
            if self.replicas[member].incarnation != incarnation:
                return
            self.replicas[member].die(self.now)
        else:
            if self.trainer.incarnation != incarnation:
                return
            self.trainer.die()
        self.post(c.Down(role, member, f"silent for {silent_s:.0f} s"))


__all__ = ["RELAY", "Observer", "Simulation", "Transport"]
