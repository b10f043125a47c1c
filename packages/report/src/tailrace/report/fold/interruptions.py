"""Interruptions: a repack moves work, a pull makes way for weights, what else is interrupted goes back to the pool. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.contracts import Interrupt, Reason, Why
from tailrace.pipeline.controller.members import REPLICA
from tailrace.pipeline.run.folding import Hears
from tailrace.report.fold.history import History
from tailrace.report.fold.marks import MarkKind
from tailrace.report.words import many, why

_KINDS = {
    Why.MOVED: MarkKind.REPACK,
    Why.PULLING: MarkKind.PULL,
    Why.STOPPING: MarkKind.STOPPING,
    Why.RESIZING: MarkKind.STOPPING,
    Why.LENT: MarkKind.STOPPING,
}


@dataclass(frozen=True, slots=True)
class Interruption:
    """Trajectories that left a replica unfinished, with the response tokens that they kept.

    Args:
        version: what the replica served.
    """

    at_s: float
    source: str
    trajectories: int
    version: int | None
    reason: Reason

    @classmethod
    def of(cls, now: float, command: Interrupt, version: int | None) -> Interruption:
        """What a command says."""
        return cls(now, command.replica, len(command.trajectories), version, command.reason)

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
        """For a person, without the replica."""
        return f"{many(self.trajectories, 'trajectory', 'trajectories')}: {why(self.reason)}"


class Interruptions:
    """Hears of every interruption."""

    def __init__(self, history: History) -> None:
        self.hears: Hears = {Interrupt: self._interrupted}
        self.all: list[Interruption] = []
        self._history = history

    def of(self, kind: MarkKind) -> list[Interruption]:
        """Those of one kind."""
        return [each for each in self.all if each.kind is kind]

    def _interrupted(self, now: float, command: Interrupt) -> None:
        self.all.append(Interruption.of(now, command, self._history.member(REPLICA, command.replica).version))
