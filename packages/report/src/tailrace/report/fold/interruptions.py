"""Interruptions: a repack moves work, a pull makes way for weights, what else is interrupted goes back to the pool. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tailrace.contracts import Interrupt, Interrupted, Reason, Why
from tailrace.controller.members import REPLICA
from tailrace.controller.view import RunView
from tailrace.pipeline.run.figures.folding import Hears
from tailrace.report.reason_words import many, why


class MarkKind(StrEnum):
    """What happened at a moment."""

    REPACK = "repack"
    PULL = "interrupted for a pull"
    EVICTION = "migration"
    STOPPING = "stopping"
    DOWN = "down"
    RESTART = "restart"
    SUSPECT = "suspect"
    PULL_FAILED = "pull failed"
    PUBLISHED = "published"
    RESUMED = "resumed"
    ADDED = "added"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to a member at a moment."""

    kind: MarkKind
    role: str
    member: str
    at_s: float
    label: str


_KINDS = {
    Why.MOVED: MarkKind.REPACK,
    Why.PULLING: MarkKind.PULL,
    Why.STOPPING: MarkKind.STOPPING,
    Why.RESIZING: MarkKind.STOPPING,
    Why.LENT: MarkKind.STOPPING,
}


@dataclass(slots=True)
class Interruption:
    """A replica was told to stop trajectories.

    Args:
        version: what the replica served.
        stopped: those that left it unfinished. The others finished before.
    """

    at_s: float
    source: str
    version: int | None
    reason: Reason
    stopped: int = 0

    @property
    def kind(self) -> MarkKind:
        """What it was for."""
        return _KINDS.get(self.reason.why, MarkKind.EVICTION)

    @property
    def destination(self) -> str:
        """The replica that a repack moved the trajectories to; empty for the others."""
        return self.reason.who if self.kind is MarkKind.REPACK else ""

    @property
    def label(self) -> str:
        """The text for a person, without the replica."""
        return f"{many(self.stopped, 'trajectory', 'trajectories')}: {why(self.reason)}"

    @property
    def mark(self) -> Mark:
        """Its symbol in the timeline."""
        return Mark(self.kind, REPLICA, self.source, self.at_s, self.label)


class Interruptions:
    """Hears of every interruption. Those that came too late, since all had finished, are none."""

    def __init__(self, run: RunView) -> None:
        self.hears: Hears = {Interrupt: self._asked, Interrupted: self._stopped}
        self._all: dict[int, Interruption] = {}
        self._run = run

    @property
    def all(self) -> list[Interruption]:
        """Interruptions in the order in which the replicas were told."""
        return [each for each in self._all.values() if each.stopped]

    def of(self, kind: MarkKind) -> list[Interruption]:
        """Interruptions of one kind."""
        return [each for each in self.all if each.kind is kind]

    def _asked(self, now: float, command: Interrupt) -> None:
        version = self._run.serves(command.replica)
        self._all[command.seq] = Interruption(now, command.replica, version, command.reason)

    def _stopped(self, now: float, event: Interrupted) -> None:
        del now
        if event.answers in self._all:
            self._all[event.answers].stopped += 1
