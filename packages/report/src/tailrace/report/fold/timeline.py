"""What every member did when: spans and marks, read off the controller's view after each instant. Pure.

The spans of a member follow each other without gap or overlap, from the command that started it to its end or the last
instant. What is neither work nor start-up is a bubble, and its label says why: what the controller says, in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tailrace import contracts as c
from tailrace.controller.members import DATA, ENVIRONMENT, RANKER, RELAY, REPLICA, SCORER, TRAINER
from tailrace.controller.view import MemberRow, RunView
from tailrace.pipeline.run.figures.folding import Hears
from tailrace.report.fold.interruptions import Interruption, Interruptions, Mark, MarkKind
from tailrace.report.fold.outages import Outages
from tailrace.report.reason_words import NOT_TOLD, OTHERS, many, waits, why


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
COPIES = "weights copied for the relay and the checkpoint"
ON_THE_WAY = "its command and what it answers are on their way"


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
_TOUCHES_ALL = {c.Resumed, c.Accumulate, c.Accumulated, c.Step, c.Stepped, c.Down}  # causes may change
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

    def __init__(self, run: RunView, interruptions: Interruptions, outages: Outages) -> None:
        self.hears: Hears = dict.fromkeys((*_ABOUT, *_TOUCHES_ALL), self._heard)
        self.hears[c.Tick] = self._ticked
        self.hears[c.Finished] = self.hears[c.Refused] = self.hears[c.TurnEnded] = self._finished
        self.only: frozenset[str] | None = None
        self._marks: list[Mark] = []
        self._run, self._interruptions, self._outages = run, interruptions, outages
        self._relays: tuple[str, ...] = ()  # that were given a version last
        self._spans: list[Span] = []
        self._open: dict[Key, _Open] = {}
        self._touched: dict[Key, None] = {}
        self._seen = 0  # outages
        self._restarting: dict[Key, float] = {}

    @property
    def spans(self) -> list[Span]:
        """The spans that have ended, in the order in which they did."""
        return list(self._spans)

    def ended(self, first: int = 0) -> list[Span]:
        """The spans that have ended, from the number `first` on: those that came since there were so many."""
        return self._spans[first:]

    @property
    def count(self) -> int:
        """How many spans have ended."""
        return len(self._spans)

    def open(self, now: float) -> list[Span]:
        """What each member does at the moment, since when, until `now`."""
        return [
            Span(*key, each.doing, each.start_s, max(now, each.start_s), each.label) for key, each in self._open.items()
        ]

    @property
    def marks(self) -> list[Mark]:
        """What happened to members at moments; interruptions come last."""
        return [*self._marks, *(each.mark for each in self._stops)]

    @property
    def marked(self) -> int:
        """How many marks there are."""
        return len(self._marks) + len(self._stops)

    def last_marks(self, most: int) -> list[Mark]:
        """The latest marks, by time."""
        both = [*self._marks[-most:], *(each.mark for each in self._stops[-most:])]
        return sorted(both, key=lambda mark: mark.at_s)[-most:]

    @property
    def _stops(self) -> list[Interruption]:
        return [each for each in self._interruptions.all if self._kept((REPLICA, each.source))]

    def _heard(self, now: float, one: c.Event | c.Command) -> None:
        kind = type(one)
        if isinstance(one, c.Publish):
            self._relays = tuple(one.relays)
        if kind in _TOUCHES_ALL:
            self._touched.update(dict.fromkeys(self._open))
        about = _ABOUT.get(kind)
        if about is None or not self._kept(key := about(one)):
            return
        self._touched[key] = None
        if kind in _MARKED:
            self._mark(now, one)
        if kind is c.Publish or kind is c.Published:
            self._touched.update({(RELAY, relay): None for relay in self._relays})

    def _ticked(self, now: float, event: c.Tick) -> None:
        """Time alone changes why a member waits, and nothing of one that works."""
        del now, event
        self._touched.update({key: None for key, state in self._open.items() if state.doing in BUBBLES})

    def _finished(self, now: float, event: c.Finished | c.Refused | c.TurnEnded) -> None:
        """Most events are of this kind, and most replicas generate on."""
        del now
        key = (REPLICA, event.replica)
        if self._kept(key) and not self._run.only_trains(event.replica):
            self._touched[key] = None

    def settle(self, now: float) -> None:
        """The end of an instant."""
        for outage in self._outages.all[self._seen :]:
            self._touched[outage.role, outage.member] = None
            if self._kept((outage.role, outage.member)):
                self._marks.append(Mark(MarkKind.DOWN, outage.role, outage.member, now, outage.reason))
        self._seen = len(self._outages.all)
        self._touched.update({(REPLICA, name): None for name in self._run.occupied})
        for key in self._touched:
            if self._kept(key):
                self._now(now, key)
        self._touched.clear()

    def close(self, now: float) -> None:
        """The record ends here."""
        for key, state in self._open.items():
            self._end(key, state, now)
        self._open.clear()

    def _kept(self, key: Key) -> bool:
        return self.only is None or key[0] != REPLICA or key[1] in self.only

    def _now(self, now: float, key: Key) -> None:
        state, member = self._open.get(key), self._run.member(*key)
        if member is None:  # gone for good
            if state is not None:
                self._end(key, self._open.pop(key), now)
            return
        doing, kind, label = self._doing(member)
        if state is not None and state.doing is doing and state.key == kind:
            return
        if state is not None:
            self._end(key, state, now)
        self._open[key] = _Open(doing, kind, label, now)

    def _end(self, key: Key, state: _Open, now: float) -> None:
        if now > state.start_s:
            self._spans.append(Span(*key, state.doing, state.start_s, now, state.label))

    def _split_step(self, now: float, event: c.Stepped) -> None:
        """A step's command waits while the weights before it are copied, and both it and its answer take their way."""
        key, metrics = (TRAINER, "0"), event.metrics
        state, wall_s = self._open.get(key), metrics.get("wall_s")
        if state is not None and state.doing is Doing.TRAINING and wall_s is not None and now - wall_s > state.start_s:
            told = [metrics[name] for name in ("publish_blocking_s", "save_blocking_s") if name in metrics]
            copied_s = sum(told) if told else math.inf  # runs of before tell neither
            for doing, label, until_s in (
                (Doing.PUBLISHING, COPIES, min(state.start_s + copied_s, now - wall_s)),
                (Doing.WAITING, ON_THE_WAY, now - wall_s),
            ):
                self._end(key, _Open(doing, "", label, state.start_s), until_s)
                state.start_s = until_s

    def _begin_step(self, now: float) -> None:
        """What the trainer was given of the batch before, to add gradients, is training and no wait of the step's."""
        key = (TRAINER, "0")
        state = self._open.get(key)
        if state is not None and state.doing is Doing.TRAINING:
            self._end(key, state, now)
            state.start_s = now

    def _mark(self, now: float, one: c.Event | c.Command) -> None:
        def mark(kind: MarkKind, role: str, member: str, label: str) -> None:
            self._marks.append(Mark(kind, role, member, now, label))

        match one:
            case c.Step():
                self._begin_step(now)
            case c.Stepped():
                self._split_step(now, one)
            case c.Pull(replica=member, reason=reason) if reason.why is c.Why.ALL_IDLE:
                state = self._open.get((REPLICA, member))
                if state is not None and state.key == NOT_TOLD:
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
            case c.Published(version=version) if self._relays:
                mark(MarkKind.PUBLISHED, RELAY, self._relays[0], f"version {version}")
            case c.Resumed():
                mark(MarkKind.RESUMED, TRAINER, "0", "the driver died, and the run went on")
            case _:
                pass

    def _doing(self, member: MemberRow) -> tuple[Doing, str, str]:
        """What a member does, what makes that another than before, and a label."""
        if member.health is c.Health.DOWN:
            return Doing.DOWN, "", "not restarted"
        if member.health is c.Health.STARTING:
            held = self._why(member)
            return Doing.STARTING, held, held or "process starts"
        if member.health is c.Health.STOPPING and not member.held:
            return Doing.RELEASING, "stopping", "is told to stop"
        if member.role == REPLICA:
            return _replica(member, self._why(member))
        run = self._run
        if member.role == TRAINER:
            if run.making is not None:
                return Doing.TRAINING, str(run.making), f"version {run.making}"
            cause = self._why(member)
            return Doing.WAITING, cause, cause
        if member.role == RELAY and run.on_its_way is not None and member.id in self._relays:
            return Doing.PUBLISHING, str(run.on_its_way), f"version {run.on_its_way} on its way to the relays"
        return Doing.HOLDING, "", _HELD.get(member.role, "")

    def _why(self, member: MemberRow) -> str:
        """Why it waits, in words; empty if it does not."""
        reason = self._run.why_idle(member.role, member.id)
        return "" if reason is None else waits(reason)


def _replica(replica: MemberRow, waits_for: str) -> tuple[Doing, str, str]:
    """A replica that generates beside an evaluation is said to do what most of its trajectories are for."""
    held = many(replica.held, "trajectory", "trajectories")
    if replica.pulling is not None:
        left = f"; {held} interrupted for it" if replica.held else ""
        return Doing.PULLING, str(replica.pulling), f"version {replica.pulling}{left}"
    if replica.cells and not replica.held:
        cells = ", ".join(map(str, replica.cells))
        what = "cell" if len(replica.cells) == 1 else "cells"
        return Doing.LENT, cells, f"its devices compute gradients, as {what} {cells} of the trainer"
    if not replica.held:
        return Doing.IDLE, waits_for, waits_for
    if replica.releasing:
        return Doing.RELEASING, "", f"{held} to leave"
    what = f"{held} on version {replica.version}"
    if 2 * replica.evaluating >= replica.held:
        return Doing.EVALUATING, f"{replica.mode} {replica.version}", f"{replica.mode}, {what}"
    return Doing.GENERATING, str(replica.version), what
