"""The controller: every decision of a pipeline, as a pure function of the events so far.

    events ──► handle_all(events, now) ──► commands     no I/O, no clock, no randomness, no threads

    consumes    Snapshot Finished Interrupted Pulled Published Stepped Scored Up Down Tick ...
    waits for   a replica that is up, a version that is published, a batch that is complete, a trainer that is idle
    unblocked   by Up, by Published, by Scored, by Stepped; a member that never answers is reported Down by the executor

Events that arrive together are all taken in before anything is decided. Then the controller decides in this order: training,
one cycle of the rollout coordinator, the end.

The same calls with the same events give the same commands, byte for byte (design, invariant 6): replaying the log rebuilds
the controller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, cast

from tailrace import contracts as c
from tailrace.pipeline.controller.batches import Batches
from tailrace.pipeline.controller.coordinator import Coordinator
from tailrace.pipeline.controller.evaluations import Evaluations
from tailrace.pipeline.controller.fleet import Fleet, Health, ReplicaState
from tailrace.pipeline.controller.learner import Learner
from tailrace.pipeline.controller.ledger import GroupPhase, GroupState, Ledger, Phase, TrajectoryState
from tailrace.pipeline.controller.outbox import Outbox
from tailrace.pipeline.errors import ControllerError
from tailrace.pipeline.spec import PipelineSpec

TRAINER = "trainer"
REPLICA = "replica"
RELAY = "relay"
PULL_ATTEMPTS = 4
PULL_PAUSE_S = 0.5
"""Before a pull that failed is tried again, twice as long after each further failure: 7.5 s in all."""

_TRAIN: Final = c.Purpose.TRAIN
_EVAL: Final = c.Purpose.EVAL
_DONE: Final = Phase.DONE


class Controller:
    """Turns events into commands.

    Args:
        spec: the pipeline.
        relays: relays to start, one per node.
        first_version: the version that the trainer holds at the start.
    """

    def __init__(self, spec: PipelineSpec, *, relays: int = 1, first_version: int = 0) -> None:
        self.spec = spec
        self.ledger = Ledger(mixes_versions=spec.sync.mixes_versions)
        self.fleet = Fleet(self.ledger.view)
        self.learner = Learner(version=first_version, batches={first_version: 0})
        self.evaluations = Evaluations(spec.evaluation)
        self.gate = spec.admission.gate(spec.batch_groups)
        self.gate.reset(first_version, {})
        self.outbox = Outbox(self.fleet)
        self.coordinator = Coordinator(
            spec, self.ledger, self.fleet, self.learner, self.evaluations, self.gate, self.outbox
        )
        self.batches = Batches(spec, self.ledger, self.learner, self.gate, self.outbox)
        self.relays = relays
        self.failures: dict[str, int] = {}
        self.replica_restarts = 0
        self.now = 0.0
        self.started = False
        self.finished = False
        self.failure: str | None = None
        self._freed = False  # groups left since the last cycle: the pool has room
        self._to_score: list[str] = []
        self._needed = spec.batching.needed()
        self._handlers: dict[type, Callable[[Any], None]] = {
            c.Snapshot: self.fleet.observed,
            c.Interrupted: self._on_interrupted,
            c.Pulled: self._on_pulled,
            c.PullFailed: self._on_pull_failed,
            c.Published: self._on_published,
            c.Durable: self._on_durable,
            c.ScoringFailed: self._on_scoring_failed,
            c.Accumulated: self._on_accumulated,
            c.Stepped: self._on_stepped,
            c.Down: self._on_down,
            c.Up: self._on_up,
            c.Resumed: self._on_resumed,
        }

    def handle(self, event: c.Event, now: float) -> list[c.Command]:
        """The commands that follow from one event: `handle_all` of it alone."""
        return self.handle_all((event,), now)

    def handle_all(self, events: Sequence[c.Event], now: float) -> list[c.Command]:
        """The commands that follow from events that arrived together, in order: one decision over all of them.

        A coordinator's cycle follows if any of them calls for one; what is to be scored goes out as one `Score`. What comes
        after an event that ends the run is not looked at.

        Args:
            now: seconds on the run's clock, never decreasing.

        Raises:
            ControllerError: an event contradicts the state.
        """
        if self.over:
            return []
        self.now = now
        if not self.started:
            self._start(now)
        if self._take_in(events):
            self._send_scores()
            self._decide(set(map(type, events)), now)
        return self.outbox.take()

    def progress(self) -> c.Progress:
        """What batching and sync see."""
        return self.coordinator.progress()

    @property
    def over(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.finished or self.failure is not None

    @property
    def moves(self) -> int:
        """Replicas emptied by relocation so far."""
        return self.coordinator.moves

    def state(self) -> dict[str, Any]:
        """The whole state as plain data, for comparison."""
        plain: dict[str, Any] = {
            "ledger": dataclasses.asdict(self.ledger),
            "fleet": self.fleet.plain(),
            "learner": dataclasses.asdict(self.learner),
            "evaluations": dataclasses.asdict(self.evaluations),
        }
        for name, part in (("controller", self), ("coordinator", self.coordinator)):
            plain[name] = {key: v for key, v in vars(part).items() if isinstance(v, int | float | str | None)}
        plain["seq"], plain["gate"], plain["failures"] = self.outbox.seq, self.gate.state(), dict(self.failures)
        return plain

    # ---- events ---------------------------------------------------------------------------------------------------

    def _take_in(self, events: Sequence[c.Event]) -> bool:
        """Bring the state up to date; returns whether the run goes on."""
        for kind, alike in groupby(events, type):
            if kind is c.Finished:
                self._on_finished(cast("Iterator[c.Finished]", alike))
            elif kind is c.Scored:
                self._on_scored(cast("Iterator[c.Scored]", alike))
            else:
                handler = self._handlers.get(kind)
                if handler is None:
                    continue
                for event in alike:
                    handler(event)
                    if self.failure is not None:
                        return False
        return True

    def _start(self, now: float) -> None:
        self.started, self.coordinator.last_plan_s = True, now
        for node in range(self.relays):
            self.outbox.send(c.Start, role=RELAY, id=str(node))
        self.outbox.send(c.Start, role=TRAINER, id="0")
        for index in range(self.spec.provisioning.replicas()):
            self.outbox.send(c.Start, role=REPLICA, id=f"r{index}")
            self.fleet.add(f"r{index}", self.spec.replica_batch)
        self.evaluations.at(self.learner.version, 0, self.spec.steps)

    def _on_up(self, event: c.Up) -> None:
        if event.role == REPLICA:
            self.fleet.replicas[event.id].health = Health.UP
        elif event.role == TRAINER:
            learner = self.learner
            learner.up = True
            if event.version is not None:
                self._fall_back(event.version)
            self._publish()
            if self.spec.steps and learner.durable < learner.version:
                self._checkpoint()
        elif event.role == RELAY and self.learner.published >= 0:
            self._publish()

    def _on_down(self, event: c.Down) -> None:
        if event.role == REPLICA:
            self._replica_down(self.fleet.replicas[event.id], event.reason)
            return
        if event.role == TRAINER:
            self.learner.went_down()
        elif event.role == RELAY:  # what failed to be pulled from it says nothing of the replicas
            for replica in self.fleet.replicas.values():
                replica.failed_pulls = 0
        failures = self.failures[event.role] = self.failures.get(event.role, 0) + 1
        action = self.spec.recovery.on_down(event.role, event.id, failures)
        if action is c.RecoveryAction.RESTART:
            version = self._checkpoint_to_load() if event.role == TRAINER else None
            self.outbox.send(c.Restart, role=event.role, id=event.id, version=version)
        else:
            self._fail(f"{event.role} {event.id} is down and is not restarted: {event.reason}")

    def _replica_down(self, replica: ReplicaState, reason: str) -> None:
        if replica.health is Health.DOWN:
            return
        for name in [*self.ledger.moving]:
            if self.ledger.trajectories[name].destination == replica.id:
                self.coordinator.unbind(self.ledger.trajectories[name])
        names = tuple(replica.assigned)
        self.outbox.note(names, lambda: f"back in the pool: {replica.id} is down: {reason}")
        for name in names:
            self.coordinator.unbind(self.ledger.trajectories[name])
            self.ledger.returned(name, None)
        replica.reset()
        replica.health = Health.DOWN
        replica.failures += 1
        action = self.spec.recovery.on_down(REPLICA, replica.id, replica.failures)
        if action is c.RecoveryAction.RESTART:
            replica.health = Health.STARTING
            self.replica_restarts += 1
            self.outbox.send(c.Restart, role=REPLICA, id=replica.id)
        elif action is c.RecoveryAction.FAIL:
            self._fail(f"replica {replica.id} is down and the recovery policy gives up: {reason}")
        elif all(other.health is Health.DOWN for other in self.fleet.replicas.values()):
            self._fail(f"every replica is down and none is restarted any more; the last one: {reason}")

    def _on_finished(self, events: Iterable[c.Finished]) -> None:
        replicas, trajectories, ledger = self.fleet.replicas, self.ledger.trajectories, self.ledger
        trainer = self.learner.version
        counts = self.learner.staleness_at_completion
        for event in events:
            name = event.trajectory
            replica, state = replicas[event.replica], trajectories.get(name)
            replica.left(name, evaluation=state is not None and state.purpose is _EVAL)
            replica.failures = 0  # it works: the next failure is the first in a row
            if state is None or not ledger.finished(state, event.tokens, trainer):
                continue
            if state.destination is not None:
                self.coordinator.unbind(state)
            if state.purpose is _TRAIN and state.version is not None:
                lag = trainer - state.version
                counts[lag] = counts.get(lag, 0) + 1
            self._to_score.append(name)

    def _on_interrupted(self, event: c.Interrupted) -> None:
        name, state = event.trajectory, self.ledger.get(event.trajectory)
        evaluation = state is not None and state.purpose is _EVAL
        self.fleet.replicas[event.replica].left(name, evaluation=evaluation)
        if state is not None and state.replica == event.replica:
            self.ledger.returned(name, event.tokens_kept)

    def _on_pulled(self, event: c.Pulled) -> None:
        replica = self.fleet.replicas[event.replica]
        replica.version, replica.pulling, replica.failed_pulls = event.version, None, 0

    def _on_pull_failed(self, event: c.PullFailed) -> None:
        replica = self.fleet.replicas[event.replica]
        replica.pulling, replica.version = None, None
        replica.failed_pulls += 1
        if event.version != self.learner.published:
            self._version_gone(event.version)
        elif replica.failed_pulls > PULL_ATTEMPTS:
            self._fail(
                f"replica {replica.id} failed {replica.failed_pulls} times to pull version {event.version}: {event.reason}"
            )
        else:  # its relay may be dead and not known to be yet
            replica.pulls_from_s = self.now + PULL_PAUSE_S * 2 ** (replica.failed_pulls - 1)

    def _version_gone(self, version: int) -> None:
        """What only the weights of a version could continue begins anew, in the store too.

        The store may hold such a trajectory complete, if its end was never reported. Handed back then, it would count for
        the version of the replica that asks.
        """
        ledger = self.ledger
        waiting = [ledger.trajectories[name] for name in (*ledger.waiting.level_of, *ledger.stranded_evaluations)]
        exact = [state for state in waiting if state.purpose is _EVAL or not ledger.mixes_versions]
        lost = [state for state in exact if state.version == version]
        if not lost:
            return
        names = tuple([state.id for state in lost])
        seq = self.outbox.send(c.Abort, trajectories=names)
        self.outbox.note(names, lambda: f"begins anew: nobody has version {version} any more", seq)
        for state in lost:
            ledger.restarted(state)
        ledger.counts.regenerated_trajectories += len(lost)

    def _on_published(self, event: c.Published) -> None:
        self.learner.published = max(self.learner.published, event.version)

    def _on_durable(self, event: c.Durable) -> None:
        self.learner.durable = max(self.learner.durable, event.version)
        self.ledger.durable(event.version)

    def _on_scored(self, events: Iterable[c.Scored]) -> None:
        trajectories, ledger, needed = self.ledger.trajectories, self.ledger, self._needed
        for event in events:
            trajectory = trajectories.get(event.trajectory)
            if trajectory is None or trajectory.phase is not _DONE:
                continue  # it was dropped, or that was known already
            group = ledger.scored(trajectory, event.reward)
            if group is None:
                self.ledger.settle_eval(self.evaluations.scored(trajectory, event.reward))
            elif group.scored >= needed and group.phase is GroupPhase.GENERATING:
                self._group_complete(group)

    def _group_complete(self, group: GroupState) -> None:
        """A group has its rewards: surplus samples are aborted; it is kept for the trainer or filtered."""
        self._unbind(group)
        candidate, surplus = self.ledger.complete(group)
        if surplus:
            self._abort(surplus, "its group has all the samples that it needs")
        if self.spec.batching.keeps(candidate.rewards):
            self.gate.complete(group.index)
        else:
            self._drop(group.index, GroupPhase.FILTERED, "no signal")
        self._drop_surplus()

    def _on_scoring_failed(self, event: c.ScoringFailed) -> None:
        trajectory = self.ledger.get(event.trajectory)
        if trajectory is None or trajectory.phase is not Phase.DONE:
            return
        trajectory.scoring_attempts += 1
        if trajectory.scoring_attempts < self.spec.scoring_attempts:
            self._to_score.append(trajectory.id)
        elif trajectory.purpose is _EVAL:
            self.ledger.settle_eval(self.evaluations.scored(trajectory, None))
        else:
            self._drop(trajectory.group, GroupPhase.FAILED, event.reason)
            self._drop_surplus()
            if self.ledger.counts.failed >= self.spec.failed_groups_limit:
                self._fail(f"{self.ledger.counts.failed} groups could not be scored, the last because: {event.reason}")

    def _on_accumulated(self, event: c.Accumulated) -> None:
        if self.learner.accumulating != event.version:
            raise ControllerError(
                f"found Accumulated({event.version}) while the trainer works on {self.learner.accumulating}"
            )
        self._check_measured(event)
        self.learner.accumulating = None

    def _check_measured(self, event: c.Accumulated | c.Stepped) -> None:
        """The trainer counts staleness by itself, from the versions of the tokens."""
        measured = event.metrics.get("staleness_max", 0)
        if self.gate.bound is not None and measured > self.gate.bound:
            self._fail(
                f"the batch of version {event.version} held tokens of a staleness of {measured:.0f}, over the bound of "
                f"{self.gate.bound}: what was trained on is not what the controller admitted"
            )

    def _on_stepped(self, event: c.Stepped) -> None:
        learner = self.learner
        if learner.stepping != event.version:
            raise ControllerError(f"found Stepped({event.version}) while the trainer makes {learner.stepping}")
        self._check_measured(event)
        learner.stepped(event.version)
        self.failures.pop(TRAINER, None)
        self.ledger.trained(event.version)
        self._publish()
        if learner.step % self.spec.checkpoint_every == 0 or learner.step >= self.spec.steps:
            self._checkpoint()
        self.evaluations.at(learner.version, learner.step, self.spec.steps)

    def _on_resumed(self, event: c.Resumed) -> None:
        """Every process of the run is new. What the stores kept is kept; what ran is pending again."""
        for replica in self.fleet.replicas.values():
            replica.reset()
            replica.health = Health.STARTING
        self.learner.went_down()
        self.learner.durable = event.durable
        self._fall_back(max(event.durable, 0))
        for trajectory in list(self.ledger.trajectories.values()):
            if trajectory.phase is Phase.SCORED:
                continue
            trajectory.replica = None
            self.ledger.bind(trajectory, None)
            if trajectory.id in event.held:
                self.ledger.finished(trajectory, trajectory.tokens, self.learner.version)
                self._to_score.append(trajectory.id)
            else:
                self.ledger.restarted(trajectory, *event.partial.get(trajectory.id, (None, 0)))
        for node in range(self.relays):
            self.outbox.send(c.Start, role=RELAY, id=str(node))
        self.outbox.send(c.Restart, role=TRAINER, id="0", version=self._checkpoint_to_load())
        for replica in self.fleet.replicas.values():
            self.outbox.send(c.Restart, role=REPLICA, id=replica.id)

    def _fall_back(self, durable: int) -> None:
        self.ledger.roll_back(durable)
        self.learner.fall_back(durable)
        for group in self.gate.reset(self.learner.version, self.ledger.started()):
            self._drop(group, GroupPhase.FILTERED, "expired")
        self.batches.fell_back()

    # ---- decisions ------------------------------------------------------------------------------------------------

    def _decide(self, kinds: set[type], now: float) -> None:
        """Decide after events of these kinds."""
        self._train()
        if self._freed or self.coordinator.due(kinds, now):
            self._freed = False
            self.coordinator.run(now, stepped=c.Stepped in kinds)
        if self.learner.step >= self.spec.steps and self.learner.idle:
            self._end()

    def _end(self) -> None:
        """Every batch is trained on: what redundancy left over goes, and the run ends once nothing is under way."""
        for group in [group.index for group in self.ledger.groups.values() if group.phase is not GroupPhase.TRAINED]:
            self._drop(group, GroupPhase.FILTERED, "surplus")
        if (not self.spec.steps or self.learner.durable >= self.learner.version) and self.evaluations.idle:
            self.finished = True
            self.outbox.send(c.Finish)

    def _train(self) -> None:
        self._drop_surplus()
        if self.batches.wanted:
            for index in list(self.gate.expired()):
                self._drop(index, GroupPhase.FILTERED, "expired")
            self._freed |= self.batches.give()

    # ---- helpers --------------------------------------------------------------------------------------------------

    def _checkpoint_to_load(self) -> int | None:
        """The checkpoint that a new trainer starts from; None is the model that the run started with."""
        return self.learner.durable if self.learner.durable >= 0 else None

    def _drop(self, group: int, phase: GroupPhase, reason: str) -> None:
        self._unbind(self.ledger.groups[group])
        members = self.ledger.drop(group, phase, reason)
        self.gate.drop(group)
        self._freed = True
        self._abort(members, f"its group {group} was {phase}: {reason}")

    def _unbind(self, group: GroupState) -> None:
        """Nothing of a group is on its way to another replica any more."""
        if self.ledger.moving:
            for state in group.states:
                self.coordinator.unbind(state)

    def _drop_surplus(self) -> None:
        """Before another group completes: what came too late for its batch goes (redundancy)."""
        for late in list(self.gate.surplus()):
            self._drop(late, GroupPhase.FILTERED, "surplus")

    def _send_scores(self) -> None:
        """What finished is scored."""
        if self._to_score:
            names, self._to_score = self._to_score, []
            self.outbox.send(c.Score, trajectories=tuple(names))

    def _abort(self, trajectories: Sequence[TrajectoryState], why: str) -> None:
        for trajectory in trajectories:
            if trajectory.replica is not None:
                replica = self.fleet.replicas[trajectory.replica]
                replica.aborted += 1
                replica.left(trajectory.id, evaluation=False)
        names = tuple([trajectory.id for trajectory in trajectories])
        if self._to_score:
            gone = set(names)
            self._to_score = [name for name in self._to_score if name not in gone]
        seq = self.outbox.send(c.Abort, trajectories=names)
        self.outbox.note(names, lambda: f"dropped: {why}", seq)

    def _publish(self) -> None:
        self.learner.publishing = max(self.learner.publishing, self.learner.version)
        self.outbox.send(c.Publish, version=self.learner.version)

    def _checkpoint(self) -> None:
        self.outbox.send(c.Checkpoint, version=self.learner.version, keep=tuple(self.ledger.versions_needed()))

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self.outbox.send(c.Fail, reason=reason)
