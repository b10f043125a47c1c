"""A simulation in which everything may break: messages, members, scoring, checkpoints, the controller and the driver.

What breaks is scripted by the case. Every event and command, and what members really do, goes to the checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from tailrace import contracts as c
from tailrace.fleetsim.fuzz.case import Case
from tailrace.fleetsim.fuzz.checks.checker import Checker
from tailrace.fleetsim.fuzz.checks.data_plane import DataPlane
from tailrace.fleetsim.fuzz.checks.lineage import Lineage
from tailrace.fleetsim.fuzz.faults import CaseFault
from tailrace.fleetsim.fuzz.members import FuzzRelays, FuzzReplica
from tailrace.fleetsim.fuzz.messages import TRAINER_COMMANDS, Messages
from tailrace.fleetsim.fuzz.store import Store
from tailrace.fleetsim.fuzz.strikes import Strikes
from tailrace.fleetsim.members.replica import Replica
from tailrace.fleetsim.simulator import RELAY, Simulation
from tailrace.pipeline.controller.controller import TRAINER

SCORER = "scorer"
_FROM_TRAINER = (c.Stepped, c.Accumulated, c.Published, c.Durable)


class FuzzSimulation(Simulation):
    """One run of a case.

    Args:
        case: what runs and what breaks.
    """

    def __init__(self, case: Case) -> None:
        fleet = case.fleet()
        mixes = fleet.spec.sync.mixes_versions
        self.case, self.random = case, Random(f"what happens in case {case.seed}")
        self.plane, self.lineage = DataPlane(mixes_versions=mixes), Lineage()
        self.messages = Messages(case.messages, self.random)
        super().__init__(fleet, observer=None, transport=self.messages)
        self.replicas: dict[str, FuzzReplica] = {}  # type: ignore[assignment]  # see `new_replica`
        self.store = self.tokens = Store(fleet.workload, fleet.samples, mixes_versions=mixes, plane=self.plane)
        self.relays: FuzzRelays = FuzzRelays(self)
        self.checker = Checker(self)
        self.observer = self.checker
        self.strikes = Strikes(self)
        self.struck: Counter[str] = Counter()
        self.steps_made = 0
        self.pulled_version = 0
        self._on_disk: set[int] = set()  # checkpoints
        self.broken_until_s = 0.0
        self._scorer_up, self._scorer_incarnation = True, 0
        for kind in (c.Publish, c.Checkpoint, c.Accumulate, c.Step):
            self._carry_out[kind] = self._to_trainer

    def run(self) -> None:
        """See `Simulation.run`.

        Raises:
            InvariantError: an invariant does not hold.
        """
        self.strikes.reached(0)
        super().run()

    def new_replica(self, name: str) -> FuzzReplica:
        """See `Simulation.new_replica`."""
        return FuzzReplica(self, name, self.fleet.engine(self.now), self.fleet.speed(name))

    # ---- messages -------------------------------------------------------------------------------------------------

    def say(self, replica: Replica, events: Sequence[c.Event]) -> None:
        """See `Simulation.say`. The end of a trajectory may be reported twice."""
        for event in events:
            if isinstance(event, c.Pulled):
                self.plane.says_pulled(event)
        super().say(replica, events)
        again = [event for event in events if isinstance(event, c.Finished) and self.messages.repeats()]
        if again:
            arrival = self.messages.report(replica.id, self.now)
            self.at(arrival, self._arrive, (replica, replica.incarnation, again))

    def post(self, event: c.Event) -> None:
        """See `Simulation.post`. What the trainer says travels, in order."""
        if not isinstance(event, _FROM_TRAINER):
            super().post(event)
            return
        arrival = self.messages.in_order(TRAINER, TRAINER, self.now)
        self.at(arrival, self._trainer_said, (self.trainer.incarnation, event))

    def _trainer_said(self, said: tuple[int, c.Event]) -> None:
        incarnation, event = said
        if incarnation != self.trainer.incarnation:
            return
        if isinstance(event, c.Durable):
            self._settle(event.version)
        super().post(event)

    def _to_trainer(self, command: c.Command) -> None:
        arrival = self.messages.in_order(TRAINER_COMMANDS, TRAINER, self.now)
        self.at(arrival, self._trainer_received, (self.trainer.incarnation, command))

    def _trainer_received(self, sent: tuple[int, c.Command]) -> None:
        incarnation, command = sent
        if incarnation == self.trainer.incarnation:
            self.trainer.take(command)

    def _abort(self, command: c.Abort) -> None:
        """The store drops them at once; every replica hears of it when it does."""
        self.store.forget(command.trajectories)
        for replica in self.replicas.values():
            for arrival in self.messages.command(replica.id, self.now):
                self.at(arrival, self._aborted, (replica, replica.incarnation, command))

    def _aborted(self, sent: tuple[FuzzReplica, int, c.Abort]) -> None:
        replica, incarnation, command = sent
        if replica.incarnation == incarnation:
            replica.aborted(command)

    # ---- scoring --------------------------------------------------------------------------------------------------

    def _score(self, command: c.Score) -> None:
        for name in command.trajectories:
            known = self.store.trajectories.get(name)
            takes_s = 2 * self.random.random() * self.fleet.delays.reward_s
            takes_s += known.sample.reward_s if known is not None else 0.0
            self.at(self.now + takes_s, self._score_one, (self._scorer_incarnation, name))

    def _score_one(self, scoring: tuple[int, str]) -> None:
        incarnation, name = scoring
        known = self.store.trajectories.get(name)
        if known is None:
            return  # it was dropped meanwhile
        if incarnation != self._scorer_incarnation:
            self.post(c.ScoringFailed(name, "the scorer died"))
        elif self.now < self.broken_until_s or self.random.random() < self.case.scoring_failures:
            self.post(c.ScoringFailed(name, "the verifier broke"))
        else:
            scored = c.Scored(name, known.sample.reward)
            self.post(scored)
            if self.messages.repeats():
                self.at(self.now + self.random.random(), super().post, scored)

    # ---- what members did -----------------------------------------------------------------------------------------

    def stepped(self, command: c.Step, batch: list[str], wall_s: float, lags: dict[int, int]) -> None:
        """See `Simulation.stepped`."""
        self.store.consume(batch, command.version)
        self.lineage.stepped()
        super().stepped(command, batch, wall_s, lags)
        self.steps_made += 1
        self.strikes.reached(self.steps_made)

    def checkpoint(self, command: c.Checkpoint) -> None:
        """See `Simulation.checkpoint`."""
        self.lineage.saves(command.version)
        super().checkpoint(command)

    def _durable(self, command: c.Checkpoint) -> None:
        """The checkpoint is on disk. The controller may never hear of it, and go back further than it would have to."""
        self._on_disk.add(command.version)
        self.post(c.Durable(command.version, command.seq))

    def _settle(self, version: int) -> None:
        for made in [made for made in self._trained if made <= version]:
            self.store.forget(self._trained.pop(made))

    def torn(self, replica: Replica) -> str | None:
        """See `Simulation.torn`. A version that nobody keeps any more cannot be pulled either."""
        reason = super().torn(replica)
        keep, newest = self.case.weights.keep, max(self.relays.reached_s, default=0)
        if reason is None and keep and self.pulled_version <= newest - keep:
            reason = "no relay and no checkpoint holds it"
        if reason is not None:
            self.plane.tears(replica.id)
        return reason

    def _up(self, started: tuple[c.Start | c.Restart, int]) -> None:
        before = self.trainer.up
        super()._up(started)
        command, _ = started
        if command.role == TRAINER and self.trainer.up and not before:
            self.store.roll_back(self.trainer.version)
            self.lineage.loads(self.trainer.version)
            self.messages.open(TRAINER)
            self.messages.open(TRAINER_COMMANDS)
        elif command.role == RELAY:
            self.relays.start()
        elif command.role == SCORER:
            self._scorer_up = True

    # ---- faults ---------------------------------------------------------------------------------------------------

    def strike(self, fault: CaseFault) -> None:
        """A fault happens."""
        self.struck[str(fault.kind)] += 1
        self.strikes.strike(fault)

    def kill(self, role: str, member: str) -> None:
        """See `Simulation.kill`."""
        if role == RELAY:
            if self.relays.down:
                return
            self.relays.die()
        elif role == SCORER:
            if not self._scorer_up:
                return
            self._scorer_up = False
            self._scorer_incarnation += 1
        super().kill(role, member)

    def crash(self) -> None:
        """The driver dies with every role. What it had heard is in the log; the stores say what survived."""
        self.controller = self.checker.rebuild()
        for replica in self.replicas.values():
            replica.die(self.now)
        self.trainer.die()
        self.relays.forget()
        for member in (*self.replicas, TRAINER, TRAINER_COMMANDS):
            self.messages.open(member)
        self._scorer_up, self._scorer_incarnation = True, self._scorer_incarnation + 1
        self._heap.clear()
        self._inbox.clear()
        durable = max(self._on_disk & self.controller.learner.batches.keys(), default=-1)
        for undone in [made for made in self._trained if made > durable]:
            del self._trained[undone]
        self.post(self.store.survivors(durable))
        self.at(self.now + self.fleet.delays.snapshot_s, self._tick, 0)
        self.strikes.again()

    def replay(self) -> None:
        """The controller dies alone, and its log rebuilds it."""
        self.controller = self.checker.rebuild()
