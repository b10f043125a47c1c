"""Interruptions: a repack moves work, a pull makes way for weights, what else is interrupted goes back to the pool. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tailrace.contracts import Interrupt, Reason, Why
from tailrace.pipeline.run.words import many, why


class Kind(StrEnum):
    """What an interruption was for."""

    REPACK = "repack"
    PULL = "interrupted for a pull"
    EVICTION = "migration"
    STOPPING = "stopping"


_KINDS = {Why.MOVED: Kind.REPACK, Why.PULLING: Kind.PULL, Why.STOPPING: Kind.STOPPING}


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
    def kind(self) -> Kind:
        """What it was for."""
        return _KINDS.get(self.reason.why, Kind.EVICTION)

    @property
    def destination(self) -> str:
        """The replica that a repack moved the trajectories to; empty for the others."""
        return self.reason.who if self.kind is Kind.REPACK else ""

    @property
    def label(self) -> str:
        """For a person, without the replica."""
        return f"{many(self.trajectories, 'trajectory', 'trajectories')}: {why(self.reason)}"
