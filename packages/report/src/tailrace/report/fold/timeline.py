"""What every member did when: spans and marks, read off the history after each instant. Pure.

The spans of a member follow each other without gap or overlap, from the command that started it to its end or the last
instant. What is neither work nor start-up is a bubble, and its label says what the member was waiting for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tailrace import contracts as c
from tailrace.controller.members import DATA, ENVIRONMENT, RANKER, RELAY, REPLICA, SCORER, TRAINER
from tailrace.pipeline.run.figures.folding import Hears
from tailrace.report.fold.causes import NOT_YET, OTHERS, idle_cause, waiting_cause
from tailrace.report.fold.history import History
from tailrace.report.fold.interruptions import Interruptions, Mark, MarkKind
from tailrace.report.fold.states import PastMember
from tailrace.report.words import many, why


class Doing(StrEnum):
    """What a member does."""

    STARTING = "starting"
    PULLING = "pulling"
    GENERATING = "generating"
    EVALUATING = "evaluating"
    RELEASING = "releasing"
    LENT = "lent"
    IDLE = "idle"
    TRAINING = "training"
    PUBLISHING = "publishing"
    WAITING = "waiting"
    HOLDING = "holding"
    DOWN = "down"


BUBBLES = frozenset({Doing.IDLE, Doing.WAITING})


_HELD = {
    RELAY: "complete versions to pull from",
    DATA: "prompts and trajectories",
    SCORER: "trajectories are scored",
    RANKER: "lengths are predicted",
    ENVIRONMENT: "turns are answered",
}

Key = tuple[str, str]
"""A member: its role and its id."""

_BY_ROLE = (c.Start, c.Restart, c.Stop, c.Up, c.Down, c.Silent)
_BY_REPLICA = (c.Interrupted, c.Pulled, c.PullFailed, c.Route, c.Interrupt, c.Pull, c.Resize, c.Lend, c.Return)
_BY_TRAINER = (c.Accumulate, c.Accumulated, c.Step, c.Stepped, c.Publish, c.Published)
_ABOUT: dict[type, Callable[[Any], Key]] = {
    **dict.fromkeys(_BY_ROLE, lambda one: (one.role, one.id)),
    **dict.fromkeys(_BY_REPLICA, lambda one: (REPLICA, one.replica)),
    **dict.fromkeys((*_BY_TRAINER, c.Resumed), lambda _: (TRAINER, "0")),
}
_TOUCHES_ALL = {c.Tick, c.Resumed, c.Accumulate, c.Accumulated, c.Step, c.Stepped, c.Down}  # causes may change
_MARKED = {
    c.Start,
    c.Stop,
    c.Restart,
    c.Up,
    c.Silent,
    c.PullFailed,
    c.Published,
    c.Resumed,
    c.Step,
    c.Stepped,
    c.Pull,
}


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


@dataclass(slots=True)
class _Open:
    doing: Doing
    key: str
    label: str
    start_s: float


class Timeline:
    """Hears of what members do, and keeps it. `close` ends the last spans.

    `only` are the replicas that are kept; all are if None. A large fleet is seen by some of its replicas.
    """

    def __init__(self, history: History, interruptions: Interruptions) -> None:
        self.hears: Hears = dict.fromkeys((*_ABOUT, *_TOUCHES_ALL), self._heard)
        self.hears[c.Finished] = self.hears[c.Refused] = self.hears[c.TurnEnded] = self._finished
        self.only: frozenset[str] | None = None
        self._marks: list[Mark] = []
        self._history, self._interruptions = history, interruptions
        self._spans: list[Span] = []
        self._open: dict[Key, _Open] = {}
        self._touched: dict[Key, None] = {}
        self._faults = 0
        self._restarting: dict[Key, float] = {}

    @property
    def spans(self) -> list[Span]:
        """The spans that have ended, in the order in which they did."""
        return list(self._spans)

    @property
    def marks(self) -> list[Mark]:
        """What happened to members at moments; interruptions come last."""
        return [*self._marks, *(each.mark for each in self._interruptions.all if self._kept((REPLICA, each.source)))]

    def _heard(self, now: float, one: c.Event | c.Command) -> None:
        kind, history = type(one), self._history
        if kind in _TOUCHES_ALL:
            self._touched.update(dict.fromkeys(self._open))
        about = _ABOUT.get(kind)
        if about is None or not self._kept(key := about(one)):
            return
        self._touched[key] = None
        if kind in _MARKED:
            self._mark(now, one, history)
        if kind is c.Publish or kind is c.Published:
            self._touched.update({(RELAY, relay): None for relay in history.relays})

    def _finished(self, now: float, event: c.Finished | c.Refused | c.TurnEnded) -> None:
        """Most events are of this kind, and most replicas generate on."""
        del now
        key = (REPLICA, event.replica)
        member = self._history.members.get(key)
        if self._kept(key) and not (member and member.holds and not member.evaluating):
            self._touched[key] = None

    def settle(self, now: float) -> None:
        """The end of an instant."""
        history = self._history
        for fault in history.faults[self._faults :]:
            self._touched[fault.role, fault.member] = None
            if self._kept((fault.role, fault.member)):
                self._marks.append(Mark(MarkKind.DOWN, fault.role, fault.member, now, fault.reason))
        self._faults = len(history.faults)
        for key in self._touched:
            if self._kept(key):
                self._now(now, key, history)
        self._touched.clear()

    def close(self, now: float) -> None:
        """The record ends here."""
        for key, state in self._open.items():
            self._end(key, state, now)
        self._open.clear()

    def _kept(self, key: Key) -> bool:
        return self.only is None or key[0] != REPLICA or key[1] in self.only

    def _now(self, now: float, key: Key, history: History) -> None:
        state, member = self._open.get(key), history.members.get(key)
        if member is None:  # gone for good
            if state is not None:
                self._end(key, self._open.pop(key), now)
            return
        doing, kind, label = _doing(member, history)
        if state is not None and state.doing is doing and state.key == kind:
            return
        if state is not None:
            self._end(key, state, now)
        self._open[key] = _Open(doing, kind, label, now)

    def _end(self, key: Key, state: _Open, now: float) -> None:
        if now > state.start_s:
            self._spans.append(Span(*key, state.doing, state.start_s, now, state.label))

    def _split_step(self, now: float, event: c.Stepped) -> None:
        """A step's command waits while the weights before it are handed to the relay and the checkpoint writer."""
        key = (TRAINER, "0")
        state, wall_s = self._open.get(key), event.metrics.get("wall_s")
        if state is not None and state.doing is Doing.TRAINING and wall_s is not None and now - wall_s > state.start_s:
            handing = _Open(Doing.PUBLISHING, "", "weights copied for the relay and the checkpoint", state.start_s)
            self._end(key, handing, now - wall_s)
            state.start_s = now - wall_s

    def _begin_step(self, now: float) -> None:
        """What the trainer was given of the batch before, to add gradients, is training and no wait of the step's."""
        key = (TRAINER, "0")
        state = self._open.get(key)
        if state is not None and state.doing is Doing.TRAINING:
            self._end(key, state, now)
            state.start_s = now

    def _mark(self, now: float, one: c.Event | c.Command, history: History) -> None:
        def mark(kind: MarkKind, role: str, member: str, label: str) -> None:
            self._marks.append(Mark(kind, role, member, now, label))

        match one:
            case c.Step():
                self._begin_step(now)
            case c.Stepped():
                self._split_step(now, one)
            case c.Pull(replica=member, reason=reason) if reason.why is c.Why.ALL_IDLE:
                state = self._open.get((REPLICA, member))
                if state is not None and state.key == NOT_YET:
                    state.label = OTHERS
            case c.Restart(reason=reason) if reason.why is not c.Why.LOST_IN_CRASH:
                self._restarting[one.role, one.id] = now
            case c.Start(role=role, id=member, reason=reason) if reason.why is c.Why.GENERATION_SLOWER:
                mark(MarkKind.ADDED, role, member, why(reason))
            case c.Stop(role=role, id=member, reason=reason) if (
                reason.why is c.Why.TRAINING_SLOWER or "left" in reason.numbers
            ):
                mark(MarkKind.REMOVED, role, member, why(reason))
            case c.Up(role=role, id=member) if (role, member) in self._restarting:
                waited_s = now - self._restarting.pop((role, member))
                mark(MarkKind.RESTART, role, member, f"up again after {waited_s:.1f} s")
            case c.Silent(role=role, id=member, silent_s=silent_s) if silent_s:
                mark(MarkKind.SUSPECT, role, member, f"silent for {silent_s:.1f} s")
            case c.PullFailed(replica=member, version=version, reason=reason):
                mark(MarkKind.PULL_FAILED, REPLICA, member, f"version {version}: {reason}")
            case c.Published(version=version) if history.relays:
                mark(MarkKind.PUBLISHED, RELAY, history.relays[0], f"version {version}")
            case c.Resumed():
                mark(MarkKind.RESUMED, TRAINER, "0", "the driver died, and the run went on")
            case _:
                pass


def _doing(member: PastMember, history: History) -> tuple[Doing, str, str]:
    """What a member does, what makes that another than before, and a label."""
    if member.health is c.Health.DOWN:
        return Doing.DOWN, "", "not restarted"
    if member.health is c.Health.STARTING:
        return Doing.STARTING, "", "process starts"
    if member.health is c.Health.STOPPING and not member.holds:
        return Doing.RELEASING, "stopping", "is told to stop"
    if member.role == REPLICA:
        return _replica(member, history)
    if member.role == TRAINER:
        if history.making is not None:
            return Doing.TRAINING, str(history.making), f"version {history.making}"
        cause = waiting_cause(history)
        return Doing.WAITING, cause, cause
    if history.published < history.publishing and member.id in history.relays and member.role == RELAY:
        return Doing.PUBLISHING, str(history.publishing), f"version {history.publishing} on its way to the relays"
    return Doing.HOLDING, "", _HELD.get(member.role, "")


def _replica(replica: PastMember, history: History) -> tuple[Doing, str, str]:
    """A replica that generates beside an evaluation is said to do what most of its trajectories are for."""
    held = many(len(replica.holds), "trajectory", "trajectories")
    if replica.pulling is not None:
        left = f"; {held} interrupted for it" if replica.holds else ""
        return Doing.PULLING, str(replica.pulling), f"version {replica.pulling}{left}"
    if replica.lent and not replica.holds:
        cells = ", ".join(map(str, replica.lent))
        what = "cell" if len(replica.lent) == 1 else "cells"
        return Doing.LENT, cells, f"its devices compute gradients, as {what} {cells} of the trainer"
    if not replica.holds:
        cause = idle_cause(replica, history)
        return Doing.IDLE, cause, cause
    if replica.releasing:
        return Doing.RELEASING, "", f"{held} to leave"
    what = f"{held} on version {replica.version}"
    if 2 * replica.evaluating >= len(replica.holds):
        mode = next((held.ref.mode for held in replica.holds.values() if held.ref.purpose is c.Purpose.EVAL), "")
        return Doing.EVALUATING, f"{mode} {replica.version}", f"{mode}, {what}"
    return Doing.GENERATING, str(replica.version), what
