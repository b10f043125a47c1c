"""A world in virtual time for tests of the controller: random lengths, delays and deaths from one seed.

It is an executor without I/O. It checks what an executor relies on (no trajectory runs twice at once, a replica is given work
only on weights that it holds, one version per trajectory unless versions mix) and fails on the event that breaks it. What was
trained on is held against the bound by the versions that really produced it, not by what the controller believes.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tailrace import contracts as c
from tailrace.pipeline.controller.controller import Controller
from tailrace.rollout.order import Order

SLOTS = 24  # trajectories that a replica decodes at once; more wait
KV_TOKENS = 4_000


@dataclass
class _Work:
    length: int
    done: float
    started: float


@dataclass
class _Replica:
    incarnation: int = 0
    up: bool = False
    version: int | None = None
    work: dict[str, _Work] = field(default_factory=dict)
    last_seq: int = 0
    finished: int = 0
    order: Order = field(default_factory=Order)
    heard: float = 0.0  # when the last event that it sent arrives: events arrive in order


class World:
    """Drives a controller until it finishes.

    Args:
        kill_rate: chance per second that a replica dies.
        trainer_kill_rate: the same for the trainer.
        keep_versions: pulls of versions older than the newest by this or more fail, as if no checkpoint were kept.
        transport_s: commands to replicas take up to so long, each its own time, so that they overtake each other.
        repeat_rate: chance that such a command arrives twice.
        grid_s: what happens within so long reaches the controller together, at the end of it; 0 delivers each event alone.
    """

    def __init__(
        self,
        controller: Controller,
        seed: int,
        *,
        kill_rate: float = 0.0,
        trainer_kill_rate: float = 0.0,
        scoring_failure_rate: float = 0.0,
        keep_versions: int = 1_000,
        transport_s: float = 0.0,
        repeat_rate: float = 0.0,
        grid_s: float = 0.0,
    ) -> None:
        self.controller = controller
        self.random = random.Random(seed)
        self.kill_rate, self.trainer_kill_rate = kill_rate, trainer_kill_rate
        self.scoring_failure_rate, self.keep_versions = scoring_failure_rate, keep_versions
        self.transport_s, self.repeat_rate, self.grid_s = transport_s, repeat_rate, grid_s
        self.now = 0.0
        self.replicas: dict[str, _Replica] = {}
        self.partial: dict[str, tuple[int, int]] = {}  # version of the newest tokens and how many there are
        self.oldest: dict[str, int] = {}  # version of the oldest tokens
        self.staleness: list[int] = []
        self.complete: set[str] = set()
        self.consumed: dict[str, int] = {}
        self.trainer_incarnation = 0
        self.durable = -1
        self.newest = -1
        self.log: list[tuple[float, c.Event]] = []  # every event, for a replay of a world without a grid
        self.calls: list[tuple[float, tuple[c.Event, ...]]] = []
        self.commands: list[list[c.Command]] = []
        self._queue: list[tuple[float, int, str, int, c.Event | Callable[[], None]]] = []
        self._order = 0
        self._batch: list[str] = []  # what the trainer was given for its next version

    def run(self, *, max_events: int = 200_000, stop_after: int | None = None) -> None:
        """Run to the end.

        Raises:
            AssertionError: an invariant broke, or the controller stopped making progress.
        """
        self._at(0.0, c.Tick())
        while self._queue and not self.controller.finished and self.controller.failure is None:
            events = self._together()
            if not events:
                continue
            self.deliver(*events)
            if any(isinstance(event, c.Tick) for event in events):
                self._tick()
            if stop_after is not None and len(self.log) >= stop_after:
                return
            assert len(self.log) < max_events, f"no end after {max_events} events"
        assert self.controller.finished or self.controller.failure, "the world ran out of events: a silent hang"

    def deliver(self, *events: c.Event) -> None:
        """Hand events to the controller, together, and carry its commands out."""
        for event in events:
            self._observe(event)
            self.log.append((self.now, event))
        self.calls.append((self.now, events))
        commands = self.controller.handle_all(events, self.now)
        self.commands.append(commands)
        self._check_moves()
        for command in commands:
            self._carry_out(command)

    def _together(self) -> list[c.Event]:
        """The next event, or all up to the next point of the grid; none if what came next is for nobody."""
        events: list[c.Event] = []
        until = self._queue[0][0]
        if self.grid_s:
            until = max(until, math.ceil(until / self.grid_s) * self.grid_s)
        self.now = max(self.now, until)
        while self._queue and self._queue[0][0] <= self.now and (self.grid_s or not events):
            _, _, member, incarnation, event = heapq.heappop(self._queue)
            if self._lost(member, incarnation):
                continue
            if callable(event):
                event()
            else:
                events.append(event)
        return events

    def crash(self) -> c.Resumed:
        """The driver dies with every role; what the stores kept is reported as a new run would find it."""
        self._queue.clear()
        for replica in self.replicas.values():
            replica.up, replica.incarnation = False, replica.incarnation + 1
            self._keep_partials(replica)
        self.trainer_incarnation += 1
        self._batch = []
        self.consumed = {name: version for name, version in self.consumed.items() if version <= self.durable}
        held: dict[str, float | None] = {name: None for name in sorted(self.complete) if name not in self.consumed}
        partial = {name: value for name, value in self.partial.items() if name not in self.complete}
        self._at(self.now, c.Tick())
        return c.Resumed(self.durable, held, partial)

    def _check_moves(self) -> None:
        """What is on its way to a replica is counted there, or the replica would wait for ever."""
        moving: dict[str, int] = {}
        for trajectory in self.controller.ledger.trajectories.values():
            if trajectory.destination is not None:
                moving[trajectory.destination] = moving.get(trajectory.destination, 0) + 1
        for replica in self.controller.fleet.replicas.values():
            assert replica.incoming == moving.get(replica.id, 0), f"{replica.id} counts {replica.incoming} incoming"

    # ---- carrying out ---------------------------------------------------------------------------------------------

    def _carry_out(self, command: c.Command) -> None:
        match command:
            case c.Start(role=role, id=member, seq=seq) | c.Restart(role=role, id=member, seq=seq):
                self._start(role, member, seq, getattr(command, "version", None))
            case c.Route(replica=name) | c.Interrupt(replica=name) | c.Pull(replica=name):
                self._send(self.replicas[name], name, command)
            case c.Score(trajectories=trajectories):
                for name in trajectories:
                    scored = (
                        c.ScoringFailed(name, "verifier broke")
                        if self.random.random() < self.scoring_failure_rate
                        else c.Scored(name, float(self.random.random() < 0.5))
                    )
                    self._at(self.now + self.random.uniform(0.0, 0.3), scored)
            case c.Accumulate(version=version, trajectories=names, seq=seq):
                self._train(names)
                event = c.Accumulated(version, names, answers=seq)
                self._at(self.now + self.random.uniform(0.2, 0.7), event, "trainer", self.trainer_incarnation)
            case c.Step(version=version, mini_batches=batches, seq=seq):
                self._train([name for batch in batches for name in batch])
                stepped = c.Stepped(version, answers=seq)
                self._at(self.now + self.random.uniform(0.5, 2.0), stepped, "trainer", self.trainer_incarnation)
                self._stepping, self._batch = (version, self._batch), []
            case c.Publish(version=version, seq=seq):
                self._at(self.now + 0.2, c.Published(version, answers=seq), "trainer", self.trainer_incarnation)
            case c.Checkpoint(version=version, seq=seq):
                self._at(self.now + 0.7, c.Durable(version, answers=seq), "trainer", self.trainer_incarnation)
            case c.Abort(trajectories=trajectories):
                for name in trajectories:
                    assert name not in self._batch, f"{name} is dropped though it was trained on"
                    self.partial.pop(name, None)
                    self.oldest.pop(name, None)
                    for replica in self.replicas.values():
                        replica.work.pop(name, None)
            case _:
                pass

    def _train(self, names: Sequence[str]) -> None:
        """The trainer is given trajectories for the batch that it works on."""
        self._batch += names
        assert len(self._batch) == len(set(self._batch)), "a trajectory stands twice in a batch"
        for name in names:
            assert name in self.complete, f"{name} is trained on before it is complete"
            assert name not in self.consumed, f"{name} was trained on already"
            lag = self.controller.learner.version - self.oldest[name]
            bound = self.controller.gate.bound
            assert bound is None or lag <= bound, f"{name} is trained on at a staleness of {lag}, over {bound}"
            self.staleness.append(lag)

    def _send(self, replica: _Replica, name: str, command: c.Route | c.Interrupt | c.Pull) -> None:
        """A command travels; one to a member that is dead already is lost: its Down is on the way."""
        if not replica.up:
            return
        for _ in range(2 if self.random.random() < self.repeat_rate else 1):
            if not self.transport_s:
                self._arrive(replica, name, command)
                continue
            arrival = self.now + self.random.uniform(0.0, self.transport_s)
            self._at(arrival, lambda: self._arrive(replica, name, command), name, replica.incarnation)

    def _arrive(self, replica: _Replica, name: str, command: c.Route | c.Interrupt | c.Pull) -> None:
        replica.order.add(command)
        for ready in replica.order.take():
            match ready:
                case c.Route():
                    self._route(replica, ready)
                case c.Interrupt():
                    self._interrupt(replica, ready)
                case c.Pull():
                    self._pull(replica, ready)
            assert not isinstance(ready, c.Abort)
            assert replica.last_seq < ready.seq, f"{name} carries out {ready.seq} after {replica.last_seq}"
            replica.last_seq = ready.seq
            self._at(self.now + 0.02, lambda: self._say(name, self._snapshot(name)), name, replica.incarnation)

    def _say(self, name: str, event: c.Event) -> None:
        """A replica reports: after what it reported before, and after a while."""
        replica = self.replicas[name]
        replica.heard = max(replica.heard, self.now + self.random.uniform(0.0, 0.1))
        self._at(replica.heard, event, name, replica.incarnation)

    def _pull(self, replica: _Replica, command: c.Pull) -> None:
        name, version = command.replica, command.version
        known = [trajectory for trajectory in replica.work if self.controller.ledger.get(trajectory) is not None]
        assert not known, f"{name} pulls with {known} in flight"
        replica.work.clear()  # an abort overtook the command that routed these
        replica.version = None
        event: c.Event = (
            c.PullFailed(name, version, "no checkpoint", answers=command.seq)
            if version <= self.newest - self.keep_versions
            else c.Pulled(name, version, answers=command.seq)
        )

        def done() -> None:
            replica.version = version if isinstance(event, c.Pulled) else None
            self._say(name, event)

        self._at(self.now + self.random.uniform(0.01, 0.5), done, name, replica.incarnation)

    def _snapshot(self, name: str) -> c.Snapshot:
        replica = self.replicas[name]
        kv = min(1.0, sum(self._tokens(trajectory, work) for trajectory, work in replica.work.items()) / KV_TOKENS)
        running = min(len(replica.work), SLOTS)
        waiting = len(replica.work) - running
        return c.Snapshot(
            name,
            kv,
            running,
            waiting,
            replica.finished,
            replica.version,
            replica.last_seq,
            kv_capacity_tokens=KV_TOKENS,
        )

    def _start(self, role: str, member: str, seq: int, version: int | None) -> None:
        if role == "replica":
            replica = self.replicas.setdefault(member, _Replica())
            replica.work.clear()
            replica.up, replica.version, replica.order, replica.last_seq = True, None, Order(), 0
            self._at(self.now + self.random.uniform(1, 3), c.Up(role, member, answers=seq), member, replica.incarnation)
        elif role == "trainer":
            self._batch = []
            for name in [name for name, consumed in self.consumed.items() if consumed > (version or 0)]:
                del self.consumed[name]
            self._at(self.now + 1.0, c.Up(role, member, version or 0, answers=seq), role, self.trainer_incarnation)
        else:
            self._at(self.now + 0.1, c.Up(role, member, answers=seq))

    def _route(self, replica: _Replica, command: c.Route) -> None:
        assert replica.version is not None, f"{command.replica} serves no version"
        for ref in command.trajectories:
            running = [name for name, other in self.replicas.items() if ref.trajectory in other.work]
            assert not running, f"{ref.trajectory} already runs on {running}"
            assert ref.trajectory not in self.consumed, f"{ref.trajectory} was trained on already"
            version, kept = self.partial.get(ref.trajectory, (replica.version, 0))
            mixes = self.controller.ledger.mixes_versions and ref.purpose is c.Purpose.TRAIN
            if version != replica.version and not mixes:
                kept = 0
            if not kept:
                self.oldest[ref.trajectory] = replica.version
            self.oldest[ref.trajectory] = min(self.oldest[ref.trajectory], replica.version)
            length = min(192, 5 + int(self.random.paretovariate(1.2) * 8))
            left = max(length - kept, 1)
            done = self.now + left * 0.02 * self.random.uniform(0.8, 1.2)
            replica.work[ref.trajectory] = _Work(kept + left, done, self.now)
            self.partial[ref.trajectory] = (replica.version, kept)
            finished = c.Finished(command.replica, ref.trajectory, kept + left, answers=command.seq)
            member = f"{command.replica}/{ref.trajectory}"
            self._at(done, lambda event=finished: self._finish(event), member, replica.incarnation)  # type: ignore[misc]

    def _finish(self, event: c.Finished) -> None:
        replica = self.replicas[event.replica]
        replica.work.pop(event.trajectory)
        replica.finished += 1
        self.partial[event.trajectory] = (self.partial[event.trajectory][0], event.tokens)
        self.complete.add(event.trajectory)
        self._say(event.replica, event)

    def _interrupt(self, replica: _Replica, command: c.Interrupt) -> None:
        for name in command.trajectories:
            work = replica.work.pop(name, None)
            if work is None:
                continue
            kept = self._progress(name, work)
            self._say(command.replica, c.Interrupted(command.replica, name, kept, answers=command.seq))

    def _tokens(self, name: str, work: _Work) -> int:
        kept = self.partial[name][1]
        share = min(1.0, (self.now - work.started) / max(work.done - work.started, 1e-9))
        return kept + int((work.length - kept) * share)

    def _progress(self, name: str, work: _Work) -> int:
        tokens = self._tokens(name, work)
        self.partial[name] = (self.partial[name][0], tokens)
        return tokens

    # ---- what happens ---------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        for name, replica in self.replicas.items():
            if not replica.up:
                continue
            if self.random.random() < self.kill_rate:
                replica.up, replica.incarnation = False, replica.incarnation + 1
                self._keep_partials(replica)
                self._at(self.now, c.Down("replica", name, "killed"))
                continue
            self._say(name, self._snapshot(name))
        if self.controller.learner.up and self.random.random() < self.trainer_kill_rate:
            self.trainer_incarnation += 1
            self._at(self.now, c.Down("trainer", "0", "killed"))
        self._at(self.now + 1.0, c.Tick())

    def _keep_partials(self, replica: _Replica) -> None:
        for name, work in replica.work.items():
            self._progress(name, work)
        replica.work.clear()

    def _observe(self, event: c.Event) -> None:
        match event:
            case c.Published(version=version):
                self.newest = max(self.newest, version)
            case c.Durable(version=version):
                self.durable = max(self.durable, version)
            case c.Stepped(version=version):
                made, names = self._stepping
                assert made == version
                for name in names:
                    assert name not in self.consumed, f"{name} is trained on twice"
                    self.consumed[name] = version
            case _:
                pass

    def _lost(self, member: str, incarnation: int) -> bool:
        """Whether what would have sent this event died, or gave the work away, before."""
        if not member:
            return False
        if member == "trainer":
            return incarnation != self.trainer_incarnation
        name, _, trajectory = member.partition("/")
        replica = self.replicas[name]
        return incarnation != replica.incarnation or bool(trajectory and trajectory not in replica.work)

    def _at(self, when: float, event: c.Event | Callable[[], None], member: str = "", incarnation: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._queue, (when, self._order, member, incarnation, event))


def replay(controller: Controller, log: Iterable[tuple[float, c.Event]]) -> list[list[c.Command]]:
    """The commands that a fresh controller gives for a recorded log, event by event."""
    return [controller.handle(event, now) for now, event in log]


def replay_calls(controller: Controller, calls: Iterable[tuple[float, Sequence[c.Event]]]) -> list[list[c.Command]]:
    """The same for events that arrived together."""
    return [controller.handle_all(events, now) for now, events in calls]
