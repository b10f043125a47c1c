"""The controller: every decision of a pipeline, as a pure function of the events so far.

    events ──► handle(event, now) ──► commands          no I/O, no clock, no randomness, no threads

    consumes    Snapshot Finished Interrupted Pulled Published Stepped Scored Up Down Tick ...
    waits for   a replica that is up, a version that is published, a batch that is complete, a trainer that is idle
    unblocked   by Up, by Published, by Scored, by Stepped; a member that never answers is reported Down by the executor

After each event the controller decides in this order, so that what is stranded goes before what is new:
stranded trajectories, training, pulls, evaluations and new groups, relocation, the end.

The same events give the same commands, byte for byte (design, invariant 6): replaying the log rebuilds the controller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from tailrace import contracts as c
from tailrace.pipeline.controller.evaluations import Evaluations
from tailrace.pipeline.controller.fleet import Fleet, Health, ReplicaState
from tailrace.pipeline.controller.learner import Learner
from tailrace.pipeline.controller.ledger import GroupPhase, Ledger, Phase, TrajectoryState
from tailrace.pipeline.errors import ControllerError
from tailrace.pipeline.spec import PipelineSpec

TRAINER = "trainer"
REPLICA = "replica"
RELAY = "relay"


class Controller:
    """Turns events into commands.

    Args:
        spec: the pipeline.
        relays: relays to start, one per node.
        first_version: the version that the trainer holds at the start.
    """

    def __init__(self, spec: PipelineSpec, *, relays: int = 1, first_version: int = 0) -> None:
        self.spec = spec
        self.ledger = Ledger()
        self.fleet = Fleet()
        self.learner = Learner(version=first_version, batches={first_version: 0})
        self.evaluations = Evaluations(spec.evaluation)
        self.relays = relays
        self.failures: dict[str, int] = {}
        self.moves = 0
        self.replica_restarts = 0
        self.started = False
        self.finished = False
        self.failure: str | None = None
        self._seq = 0
        self._routings = 0
        self._last_plan_s = 0.0
        self._out: list[c.Command] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            c.Snapshot: self.fleet.observed,
            c.Finished: self._on_finished,
            c.Interrupted: self._on_interrupted,
            c.Pulled: self._on_pulled,
            c.PullFailed: self._on_pull_failed,
            c.Published: self._on_published,
            c.Durable: self._on_durable,
            c.Scored: self._on_scored,
            c.ScoringFailed: self._on_scoring_failed,
            c.Stepped: self._on_stepped,
            c.Down: self._on_down,
            c.Up: self._on_up,
            c.Resumed: self._on_resumed,
        }

    def handle(self, event: c.Event, now: float) -> list[c.Command]:
        """The commands that follow from an event.

        Args:
            now: seconds on the run's clock, never decreasing.

        Raises:
            ControllerError: the event contradicts the state.
        """
        self._out = []
        if self.finished or self.failure is not None:
            return []
        if not self.started:
            self._start(now)
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)
        if self.failure is None:
            self._decide(now, stepped=isinstance(event, c.Stepped))
        return self._out

    def progress(self) -> c.Progress:
        """What admission, batching and sync see."""
        learner, ledger = self.learner, self.ledger
        return c.Progress(
            version=learner.version,
            published=learner.published,
            admitted=ledger.counts.admitted,
            generating=ledger.generating,
            buffered=len(ledger.buffered),
            consumed=learner.step * self.spec.batch_groups,
            dropped=ledger.counts.filtered + ledger.counts.failed,
            batch_groups=self.spec.batch_groups,
            last_version=self.spec.steps,
        )

    def state(self) -> dict[str, Any]:
        """The whole state as plain data, for comparison."""
        plain: dict[str, Any] = {
            "ledger": dataclasses.asdict(self.ledger),
            "fleet": dataclasses.asdict(self.fleet),
            "learner": dataclasses.asdict(self.learner),
            "evaluations": dataclasses.asdict(self.evaluations),
        }
        plain["controller"] = {
            key: value for key, value in vars(self).items() if isinstance(value, int | float | str | None)
        }
        plain["failures"] = dict(self.failures)
        return plain

    # ---- events ---------------------------------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        self.started, self._last_plan_s = True, now
        for node in range(self.relays):
            self._send(c.Start, role=RELAY, id=str(node))
        self._send(c.Start, role=TRAINER, id="0")
        for index in range(self.spec.provisioning.replicas()):
            self._send(c.Start, role=REPLICA, id=f"r{index}")
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
            self.learner.up, self.learner.stepping = False, None
        failures = self.failures[event.role] = self.failures.get(event.role, 0) + 1
        action = self.spec.recovery.on_down(event.role, event.id, failures)
        if action is c.RecoveryAction.RESTART:
            version = self._checkpoint_to_load() if event.role == TRAINER else None
            self._send(c.Restart, role=event.role, id=event.id, version=version)
        else:
            self._fail(f"{event.role} {event.id} is down and is not restarted: {event.reason}")

    def _replica_down(self, replica: ReplicaState, reason: str) -> None:
        if replica.health is Health.DOWN:
            return
        for trajectory in self.ledger.trajectories.values():
            if trajectory.destination == replica.id or trajectory.id in replica.assigned:
                self._unbind(trajectory)
        for name in list(replica.assigned):
            self.ledger.returned(name, None)
        replica.reset()
        replica.health = Health.DOWN
        replica.failures += 1
        action = self.spec.recovery.on_down(REPLICA, replica.id, replica.failures)
        if action is c.RecoveryAction.RESTART:
            replica.health = Health.STARTING
            self.replica_restarts += 1
            self._send(c.Restart, role=REPLICA, id=replica.id)
        elif action is c.RecoveryAction.FAIL:
            self._fail(f"replica {replica.id} is down and the recovery policy gives up: {reason}")
        elif all(other.health is Health.DOWN for other in self.fleet.replicas.values()):
            self._fail(f"every replica is down and none is restarted any more; the last one: {reason}")

    def _on_finished(self, event: c.Finished) -> None:
        self._leave(event.trajectory, event.replica)
        self.fleet.replicas[event.replica].failures = 0  # it works: the next failure is the first in a row
        trajectory = self.ledger.finished(event.trajectory, event.tokens, self.learner.version)
        if trajectory is None:
            return
        self._unbind(trajectory)
        if trajectory.purpose is c.Purpose.TRAIN and trajectory.version is not None:
            lag = self.learner.version - trajectory.version
            counts = self.learner.staleness_at_completion
            counts[lag] = counts.get(lag, 0) + 1
        self._send(c.Score, trajectories=(trajectory.id,))

    def _on_interrupted(self, event: c.Interrupted) -> None:
        self._leave(event.trajectory, event.replica)
        trajectory = self.ledger.get(event.trajectory)
        if trajectory is not None and trajectory.replica == event.replica:
            self.ledger.returned(event.trajectory, event.tokens_kept)

    def _leave(self, trajectory: str, replica: str) -> None:
        """A trajectory is no longer on a replica; a source whose last one has left is released."""
        source = self.fleet.replicas[replica]
        source.assigned.pop(trajectory, None)
        if not source.assigned:
            source.moving_out = False

    def _on_pulled(self, event: c.Pulled) -> None:
        replica = self.fleet.replicas[event.replica]
        replica.version, replica.pulling, replica.failed_pulls = event.version, None, 0

    def _on_pull_failed(self, event: c.PullFailed) -> None:
        replica = self.fleet.replicas[event.replica]
        replica.pulling, replica.version = None, None
        replica.failed_pulls += 1
        if event.version != self.learner.published:
            for name in self.ledger.pending:
                trajectory = self.ledger.trajectories[name]
                if trajectory.version == event.version:
                    trajectory.version, trajectory.tokens = None, 0
                    self.ledger.counts.regenerated_trajectories += 1
        elif replica.failed_pulls >= 3:
            self._fail(f"replica {replica.id} failed three times to pull version {event.version}: {event.reason}")

    def _on_published(self, event: c.Published) -> None:
        self.learner.published = max(self.learner.published, event.version)

    def _on_durable(self, event: c.Durable) -> None:
        self.learner.durable = max(self.learner.durable, event.version)
        self.ledger.durable(event.version)

    def _on_scored(self, event: c.Scored) -> None:
        trajectory = self.ledger.scored(event.trajectory, event.reward, self.spec.batching.needed())
        if trajectory is not None and trajectory.purpose is c.Purpose.EVAL:
            self.ledger.settle_eval(self.evaluations.scored(trajectory, event.reward))

    def _on_scoring_failed(self, event: c.ScoringFailed) -> None:
        trajectory = self.ledger.get(event.trajectory)
        if trajectory is None or trajectory.phase is not Phase.DONE:
            return
        trajectory.scoring_attempts += 1
        if trajectory.scoring_attempts < self.spec.scoring_attempts:
            self._send(c.Score, trajectories=(trajectory.id,))
        elif trajectory.purpose is c.Purpose.EVAL:
            self.ledger.settle_eval(self.evaluations.scored(trajectory, None))
        else:
            self._drop(trajectory.group, GroupPhase.FAILED)
            if self.ledger.counts.failed >= self.spec.failed_groups_limit:
                self._fail(f"{self.ledger.counts.failed} groups could not be scored, the last because: {event.reason}")

    def _on_stepped(self, event: c.Stepped) -> None:
        learner = self.learner
        if learner.stepping != event.version:
            raise ControllerError(f"found Stepped({event.version}) while the trainer makes {learner.stepping}")
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
        self.learner.up = False
        self.learner.durable = event.durable
        self._fall_back(max(event.durable, 0))
        for trajectory in list(self.ledger.trajectories.values()):
            if trajectory.phase is Phase.SCORED:
                continue
            trajectory.replica = trajectory.destination = None
            if trajectory.id in event.held:
                self.ledger.finished(trajectory.id, trajectory.tokens, self.learner.version)
                self._send(c.Score, trajectories=(trajectory.id,))
            else:
                trajectory.phase = Phase.PENDING
                trajectory.version, trajectory.tokens = event.partial.get(trajectory.id, (None, 0))
                self.ledger.pending[trajectory.id] = None
        for node in range(self.relays):
            self._send(c.Start, role=RELAY, id=str(node))
        self._send(c.Restart, role=TRAINER, id="0", version=self._checkpoint_to_load())
        for replica in self.fleet.replicas.values():
            self._send(c.Restart, role=REPLICA, id=replica.id)

    def _fall_back(self, durable: int) -> None:
        self.ledger.roll_back(durable)
        self.learner.fall_back(durable)

    # ---- decisions ------------------------------------------------------------------------------------------------

    def _decide(self, now: float, *, stepped: bool) -> None:
        if self.ledger.pending:
            self._place_stranded()
        self._train()
        self._pull()
        self._launch()
        self._relocate(now, stepped=stepped)
        if (
            self.learner.step >= self.spec.steps
            and self.learner.idle
            and (not self.spec.steps or self.learner.durable >= self.learner.version)
            and self.evaluations.idle
        ):
            self.finished = True
            self._send(c.Finish)

    def _place_stranded(self) -> None:
        """Route what is pending: to where it was moving, else to a replica of its version, else have one pull it."""
        routes: dict[str, list[TrajectoryState]] = {}
        versions_without_replica: dict[int, None] = {}
        for name in list(self.ledger.pending):
            trajectory = self.ledger.trajectories[name]
            target = self._destination(trajectory)
            if target is not None:
                routes.setdefault(target, []).append(trajectory)
            elif trajectory.version is not None:
                versions_without_replica[trajectory.version] = None
        for target, trajectories in routes.items():
            self._route(self.fleet.replicas[target], trajectories)
        for version in versions_without_replica:
            if any(version in (replica.version, replica.pulling) for replica in self.fleet.up()):
                continue
            idle = [replica for replica in self.fleet.up() if replica.pulling is None and not replica.in_flight]
            if idle:
                self._send_pull(idle[0], version)

    def _destination(self, trajectory: TrajectoryState) -> str | None:
        version = trajectory.version
        if version is None:
            serving = [replica for replica in self.fleet.up() if replica.serves]
            newest = max((replica.version for replica in serving if replica.version is not None), default=None)
            candidates = [replica for replica in serving if replica.version == newest]
        else:
            candidates = self.fleet.serving(version)
        if not candidates:
            return None
        if trajectory.destination in [replica.id for replica in candidates]:
            return trajectory.destination
        self._routings += 1
        return self.spec.routing.choose([replica.view() for replica in candidates], self._routings)

    def _route(self, replica: ReplicaState, trajectories: Iterable[TrajectoryState]) -> None:
        assert replica.version is not None
        names = []
        for trajectory in trajectories:
            self._unbind(trajectory)
            names.append(trajectory.id)
        states = [self.ledger.routed(name, replica.id, replica.version) for name in names]
        seq = self._send(c.Route, replica=replica.id, trajectories=tuple(state.ref() for state in states))
        self.fleet.routed(replica, names, seq)

    def _train(self) -> None:
        learner, spec = self.learner, self.spec
        if not learner.idle or learner.step >= spec.steps or learner.publishing < 0:
            return
        progress = self.progress()
        for index in list(self.ledger.buffered):
            if spec.admission.expired(self.ledger.oldest_version(index), progress):
                self._drop(index, GroupPhase.FILTERED)
        if len(self.ledger.buffered) < spec.batch_groups or not spec.admission.ready(self.progress()):
            return
        groups = list(spec.sampler.pick(self.ledger.candidates(), spec.batch_groups))
        version = learner.version + 1
        counts: dict[int, int] = {}
        for index in groups:
            for name in self.ledger.groups[index].members:
                produced_by = self.ledger.trajectories[name].version
                assert produced_by is not None
                counts[learner.version - produced_by] = counts.get(learner.version - produced_by, 0) + 1
        learner.consumed_staleness[version] = counts
        self.ledger.consume(groups, version)
        learner.stepping = version
        batches = [
            tuple(name for index in mini for name in self.ledger.groups[index].members)
            for mini in spec.training.split(groups)
        ]
        self._send(c.Step, version=version, mini_batches=tuple(batches))

    def _pull(self) -> None:
        if self.learner.published < 0:
            return
        idle_views = [
            replica.view() for replica in self.fleet.up() if replica.pulling is None and not replica.moving_out
        ]
        for name in self.spec.sync.pulls(idle_views, self.progress()):
            self._send_pull(self.fleet.replicas[name], self.learner.published)

    def _send_pull(self, replica: ReplicaState, version: int) -> None:
        replica.pulling = version
        self._send(c.Pull, replica=replica.id, version=version)

    def _launch(self) -> None:
        for replica in self.fleet.up():
            if not replica.serves or not self.spec.sync.accepts(replica.view(), self.progress()):
                continue
            assert replica.version is not None
            evaluation = self.evaluations.start(replica.version)
            if evaluation:
                for trajectory in evaluation:
                    self.ledger.add(trajectory)
                self._route(replica, evaluation)
                continue
            self._launch_groups(replica)

    def _launch_groups(self, replica: ReplicaState) -> None:
        assert replica.version is not None
        members: list[str] = []
        while (room := replica.capacity - replica.in_flight - len(members)) > 0:
            progress = self.progress()
            if progress.generating + progress.buffered >= self.spec.buffer_groups:
                break
            if self._enough() or not self.spec.admission.may_start(replica.version, progress):
                break
            launches = self.spec.batching.launch(progress, room)
            if not launches:
                break
            members += self.ledger.admit(launches[0].group, launches[0].samples)
        if members:
            self._route(replica, [self.ledger.trajectories[name] for name in members])

    def _enough(self) -> bool:
        """Whether what was admitted suffices for the batches that remain, so that the run leaves nothing behind."""
        counts = self.ledger.counts
        return counts.admitted - counts.filtered - counts.failed >= self.spec.steps * self.spec.batch_groups

    def _relocate(self, now: float, *, stepped: bool) -> None:
        policy = self.spec.relocation
        if not policy.due(now, self._last_plan_s, stepped):
            return
        eligible = [replica.view() for replica in self.fleet.up() if replica.serves and not replica.incoming]
        for move in policy.plan(eligible):
            source, destination = self.fleet.replicas[move.source], self.fleet.replicas[move.destination]
            names = tuple(source.assigned)
            for name in names:
                self.ledger.trajectories[name].destination = destination.id
            destination.incoming += len(names)
            source.moving_out = True
            self.moves += 1
            self._send(c.Interrupt, replica=source.id, trajectories=names)
        if not stepped:
            self._last_plan_s = now
            self.fleet.sampled()

    # ---- helpers --------------------------------------------------------------------------------------------------

    def _unbind(self, trajectory: TrajectoryState) -> None:
        """A trajectory no longer moves to its destination."""
        if trajectory.destination is not None:
            self.fleet.replicas[trajectory.destination].incoming -= 1
            trajectory.destination = None

    def _checkpoint_to_load(self) -> int | None:
        """The checkpoint that a new trainer starts from; None is the model that the run started with."""
        return self.learner.durable if self.learner.durable >= 0 else None

    def _drop(self, group: int, phase: GroupPhase) -> None:
        members = tuple(self.ledger.groups[group].members)
        for name in members:
            self._unbind(self.ledger.trajectories[name])
        self.ledger.drop(group, phase)
        for replica in self.fleet.replicas.values():
            for name in members:
                replica.assigned.pop(name, None)
        self._send(c.Abort, trajectories=members)

    def _publish(self) -> None:
        self.learner.publishing = max(self.learner.publishing, self.learner.version)
        self._send(c.Publish, version=self.learner.version)

    def _checkpoint(self) -> None:
        self._send(c.Checkpoint, version=self.learner.version, keep=tuple(sorted(self.ledger.versions_needed())))

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._send(c.Fail, reason=reason)

    def _send(self, kind: Callable[..., c.Command], **fields: Any) -> int:
        self._seq += 1
        self._out.append(kind(seq=self._seq, **fields))
        return self._seq
