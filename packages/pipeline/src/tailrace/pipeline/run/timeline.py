"""What every member did when: spans and marks, read off the controller after each event. Pure.

The spans of a member follow each other without gap or overlap, from the command that started it to the last event. What is
neither work nor start-up is a bubble, and its label says what the member was waiting for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tailrace import contracts as c
from tailrace.pipeline.controller.controller import RELAY, REPLICA, TRAINER, Controller
from tailrace.pipeline.controller.fleet import Health, ReplicaState
from tailrace.pipeline.run.reporting.causes import idle_cause, waiting_cause
from tailrace.pipeline.run.reporting.interruptions import Why, interruptions


class Doing(StrEnum):
    """What a member does."""

    STARTING = "starting"
    PULLING = "pulling"
    GENERATING = "generating"
    EVALUATING = "evaluating"
    RELEASING = "releasing"
    IDLE = "idle"
    TRAINING = "training"
    PUBLISHING = "publishing"
    WAITING = "waiting"
    HOLDING = "holding"
    DOWN = "down"


BUBBLES = frozenset({Doing.IDLE, Doing.WAITING})


class MarkKind(StrEnum):
    """What happened at a moment."""

    REPACK = "repack"
    PULL = "interrupted for a pull"
    EVICTION = "migration"
    DOWN = "down"
    RESTART = "restart"
    SUSPECT = "suspect"
    PULL_FAILED = "pull failed"
    PUBLISHED = "published"
    RESUMED = "resumed"


_OF_A_ROLE = (c.Start, c.Restart, c.Up, c.Down, c.Suspect)
_MARK_OF = {Why.REPACK: MarkKind.REPACK, Why.PULL: MarkKind.PULL, Why.EVICTION: MarkKind.EVICTION}


@dataclass(frozen=True, slots=True)
class Span:
    """A member did one thing from `start_s` to `end_s` on the run's clock."""

    role: str
    member: str
    doing: Doing
    start_s: float
    end_s: float
    label: str

    @property
    def duration_s(self) -> float:
        """Its length."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to a member at a moment."""

    kind: MarkKind
    role: str
    member: str
    at_s: float
    label: str


@dataclass(slots=True)
class _Open:
    doing: Doing
    key: str
    label: str
    start_s: float


class Timeline:
    """Observes a controller and keeps what its members did. `close` ends the last spans.

    Args:
        keeps: says of a replica whether it is kept; all are if None. A large fleet is seen by some of its replicas.
    """

    def __init__(self, keeps: Callable[[str], bool] | None = None) -> None:
        self._keeps = keeps
        self.marks: list[Mark] = []
        self._spans: list[Span] = []
        self._open: dict[tuple[str, str], _Open] = {}
        self._relays_up: set[str] = set()
        self._restarting: dict[tuple[str, str], float] = {}

    @property
    def spans(self) -> list[Span]:
        """The spans that have ended, in the order in which they did."""
        return list(self._spans)

    def observe(self, now: float, event: c.Event, commands: Sequence[c.Command], controller: Controller) -> None:
        """One event was handled; `now` in seconds never decreases."""
        commands = [command for command in commands if self._kept(command)]
        kept = self._kept(event)
        if not kept and not commands:
            return
        self._mark(now, event if kept else None, commands, controller)
        for role, member in self._touched(event, commands, controller):
            if role == REPLICA:
                self._now(now, role, member, *_replica(controller.fleet.replicas[member], controller))
            elif role == TRAINER:
                if isinstance(event, c.Stepped):
                    self._split_step(now, event)
                self._now(now, role, member, *_trainer(controller))
            elif role == RELAY:
                self._now(now, role, member, *self._relay(member, event, controller))

    def close(self, now: float) -> None:
        """The record ends here."""
        for (role, member), state in self._open.items():
            self._end(role, member, state, now)
        self._open.clear()

    def _kept(self, item: c.Event | c.Command) -> bool:
        """Whether it is about a replica that is kept, or about no replica alone."""
        if self._keeps is None:
            return True
        replica = item.id if isinstance(item, _OF_A_ROLE) and item.role == REPLICA else getattr(item, "replica", None)
        return replica is None or self._keeps(replica)

    def _touched(
        self, event: c.Event, commands: Sequence[c.Command], controller: Controller
    ) -> Iterable[tuple[str, str]]:
        """Members whose state this event may have changed; on a tick, every member."""
        touched: dict[tuple[str, str], None] = {}
        began = any(
            isinstance(command, c.Accumulate | c.Step) for command in commands
        )  # what idle replicas wait for may change
        if began or isinstance(event, c.Tick | c.Resumed | c.Accumulated | c.Stepped | c.Down):
            touched |= dict.fromkeys(self._open)
        for item in (event, *commands):
            match item:
                case c.Start() | c.Restart() | c.Up() | c.Down():
                    touched[item.role, item.id] = None
                case c.Accumulate() | c.Accumulated() | c.Step() | c.Stepped():
                    touched[TRAINER, "0"] = None
                case c.Publish() | c.Published():
                    touched[RELAY, "0"] = None
                    touched[TRAINER, "0"] = None
                case c.Snapshot() | c.Finished() | c.Interrupted() | c.Pulled() | c.PullFailed():
                    touched[REPLICA, item.replica] = None
                case c.Route() | c.Interrupt() | c.Pull():
                    touched[REPLICA, item.replica] = None
                case _:
                    pass
        known = controller.fleet.replicas
        if self._keeps is not None:
            touched = {key: None for key in touched if key[0] != REPLICA or self._keeps(key[1])}
        return [key for key in touched if key[0] in (TRAINER, RELAY) or (key[0] == REPLICA and key[1] in known)]

    def _now(self, now: float, role: str, member: str, doing: Doing, key: str, label: str) -> None:
        state = self._open.get((role, member))
        if state is not None and state.doing is doing and state.key == key:
            return
        if state is not None:
            self._end(role, member, state, now)
        self._open[role, member] = _Open(doing, key, label, now)

    def _end(self, role: str, member: str, state: _Open, now: float) -> None:
        if now > state.start_s:
            self._spans.append(Span(role, member, state.doing, state.start_s, now, state.label))

    def _split_step(self, now: float, event: c.Stepped) -> None:
        """A step's command waits while the weights before it are handed to the relay and the checkpoint writer."""
        state = self._open.get((TRAINER, "0"))
        wall_s = event.metrics.get("wall_s")
        if state is None or state.doing is not Doing.TRAINING or wall_s is None:
            return
        began = now - wall_s
        if began > state.start_s:
            handing = _Open(Doing.PUBLISHING, "", "weights copied for the relay and the checkpoint", state.start_s)
            self._end(TRAINER, "0", handing, began)
            state.start_s = began

    def _relay(self, member: str, event: c.Event, controller: Controller) -> tuple[Doing, str, str]:
        if isinstance(event, c.Up) and event.role == RELAY and event.id == member:
            self._relays_up.add(member)
        elif isinstance(event, c.Resumed) or (isinstance(event, c.Down) and (event.role, event.id) == (RELAY, member)):
            self._relays_up.discard(member)
        learner = controller.learner
        if member not in self._relays_up:
            return Doing.STARTING, "", "process starts"
        if member == "0" and learner.published < learner.publishing:
            return Doing.PUBLISHING, str(learner.publishing), f"version {learner.publishing} on its way to the relays"
        return Doing.HOLDING, "", "complete versions to pull from"

    def _mark(self, now: float, event: c.Event | None, commands: Sequence[c.Command], controller: Controller) -> None:
        match event:
            case c.Down(role=role, id=member, reason=reason):
                self.marks.append(Mark(MarkKind.DOWN, role, member, now, reason))
            case c.Up(role=role, id=member) if (role, member) in self._restarting:
                waited_s = now - self._restarting.pop((role, member))
                self.marks.append(Mark(MarkKind.RESTART, role, member, now, f"up again after {waited_s:.1f} s"))
            case c.Suspect(role=role, id=member, silent_s=silent_s):
                self.marks.append(Mark(MarkKind.SUSPECT, role, member, now, f"silent for {silent_s:.1f} s"))
            case c.PullFailed(replica=member, version=version, reason=reason):
                label = f"version {version}: {reason}"
                self.marks.append(Mark(MarkKind.PULL_FAILED, REPLICA, member, now, label))
            case c.Published(version=version):
                self.marks.append(Mark(MarkKind.PUBLISHED, RELAY, "0", now, f"version {version}"))
            case c.Resumed(durable=durable):
                label = f"driver resumed from checkpoint {durable}" if durable >= 0 else "driver resumed from the start"
                self.marks.append(Mark(MarkKind.RESUMED, TRAINER, "0", now, label))
            case _:
                pass
        for command in commands:
            if isinstance(command, c.Restart) and not isinstance(event, c.Resumed):
                self._restarting[command.role, command.id] = now
        for each in interruptions(now, commands, controller):
            self.marks.append(Mark(_MARK_OF[each.why], REPLICA, each.source, now, each.label))


def _replica(replica: ReplicaState, controller: Controller) -> tuple[Doing, str, str]:
    if replica.health is Health.STARTING:
        return Doing.STARTING, "", "process and engine start"
    if replica.health is Health.DOWN:
        return Doing.DOWN, "", "not restarted"
    if replica.pulling is not None:
        left = f"; {len(replica.assigned)} trajectories were interrupted for it" if replica.assigned else ""
        return Doing.PULLING, str(replica.pulling), f"version {replica.pulling}{left}"
    if replica.assigned:
        if replica.moving_out:
            return Doing.RELEASING, "", f"{len(replica.assigned)} trajectories leave"
        return _generating(replica, controller)
    cause = idle_cause(replica, controller)
    return Doing.IDLE, cause, cause


def _generating(replica: ReplicaState, controller: Controller) -> tuple[Doing, str, str]:
    """A replica that generates beside an evaluation is said to do what most of its trajectories are for."""
    what = f"{len(replica.assigned)} trajectories on version {replica.version}"
    if 2 * replica.evaluating >= len(replica.assigned):
        states = (controller.ledger.get(name) for name in replica.assigned)
        mode = next((each.mode for each in states if each is not None and each.purpose is c.Purpose.EVAL), "")
        return Doing.EVALUATING, f"{mode} {replica.version}", f"{mode}, {what}"
    return Doing.GENERATING, str(replica.version), what


def _trainer(controller: Controller) -> tuple[Doing, str, str]:
    learner = controller.learner
    if not learner.up:
        return Doing.STARTING, "", "process starts, weights load"
    if learner.making is not None:
        return Doing.TRAINING, str(learner.making), f"version {learner.making}"
    cause = waiting_cause(controller)
    return Doing.WAITING, cause, cause
