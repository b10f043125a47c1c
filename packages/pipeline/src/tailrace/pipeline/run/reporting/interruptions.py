"""Why trajectories were interrupted: a repack moves them, a pull makes way for weights, an eviction gives them back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tailrace import contracts as c
from tailrace.pipeline.controller.controller import Controller


class Why(StrEnum):
    """What an interruption was for."""

    REPACK = "repack"
    PULL = "interrupted for a pull"
    EVICTION = "migration"


@dataclass(frozen=True, slots=True)
class Interruption:
    """Trajectories that left a replica unfinished, with the response tokens that they kept.

    Args:
        destination: the replica that a repack moved them to; empty for the others, whose trajectories go back to the pool.
        version: what the replica served.
        pulled: the version that it pulls then; None for the others.
    """

    at_s: float
    why: Why
    source: str
    trajectories: int
    version: int | None
    destination: str = ""
    pulled: int | None = None

    @property
    def label(self) -> str:
        """For a person, without the replica."""
        many = f"{self.trajectories} trajector{'y' if self.trajectories == 1 else 'ies'}"
        if self.why is Why.REPACK:
            return f"{many} to {self.destination}"
        return f"{many} back to the pool" + (f" for version {self.pulled}" if self.why is Why.PULL else "")


def interruptions(now: float, commands: Sequence[c.Command], controller: Controller) -> list[Interruption]:
    """The interruptions among the commands that the controller has just given.

    A pull follows the interruption that makes way for it, in the same commands and to the same replica. A repack has bound
    the trajectories to a destination.
    """
    found = []
    for place, command in enumerate(commands):
        if not isinstance(command, c.Interrupt):
            continue
        pulls = (
            later.version
            for later in commands[place + 1 :]
            if isinstance(later, c.Pull) and later.replica == command.replica
        )
        pulled, destination = next(pulls, None), _destination(command, controller)
        why = Why.PULL if pulled is not None else Why.REPACK if destination else Why.EVICTION
        version = controller.fleet.replicas[command.replica].version
        found.append(Interruption(now, why, command.replica, len(command.trajectories), version, destination, pulled))
    return found


def _destination(command: c.Interrupt, controller: Controller) -> str:
    states = (controller.ledger.get(name) for name in command.trajectories)
    return next((state.destination for state in states if state is not None and state.destination), "")
