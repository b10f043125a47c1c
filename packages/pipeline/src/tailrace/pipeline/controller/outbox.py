"""The outbox: numbers commands, and keeps for each why it was given if somebody wants to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailrace import contracts as c
from tailrace.pipeline.controller.fleet import Fleet, ReplicaState


@dataclass(frozen=True, slots=True)
class Note:
    """Why something was decided.

    Args:
        trajectories: whom it concerns.
        text: for a person.
        seq: the command that followed, 0 if none did.
    """

    trajectories: tuple[str, ...]
    text: str
    seq: int = 0


class Outbox:
    """Commands of the event being handled, in order.

    Args:
        fleet: whose replicas' command numbers form a chain (SF-9).
    """

    def __init__(self, fleet: Fleet) -> None:
        self.seq = 0
        self.commands: list[c.Command] = []
        self.notes: list[Note] | None = None
        self._fleet = fleet

    def take(self) -> list[c.Command]:
        """The commands so far; the next event starts with none."""
        commands, self.commands = self.commands, []
        return commands

    def send(self, kind: Callable[..., c.Command], **fields: Any) -> int:
        """Give a command; returns its number."""
        self.seq += 1
        self.commands.append(kind(seq=self.seq, **fields))
        return self.seq

    def send_to(self, replica: ReplicaState, kind: Callable[..., c.Command], **fields: Any) -> int:
        """Give a replica a command that it carries out after the one before."""
        seq = self.seq + 1
        return self.send(kind, replica=replica.id, after=self._fleet.commanded(replica, seq), **fields)

    def note(self, trajectories: tuple[str, ...], text: Callable[[], str], seq: int = 0) -> None:
        """Remember why, if notes are kept; the text is made only then."""
        if self.notes is not None:
            self.notes.append(Note(trajectories, text(), seq))
