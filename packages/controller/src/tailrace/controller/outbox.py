"""The outbox: numbers commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace import contracts as c
from tailrace.controller.fleet import Replicas, ReplicaState


class Outbox:
    """Commands of the instant being handled, in order.

    Args:
        fleet: the replicas; the commands to each form a chain of numbers.
    """

    def __init__(self, fleet: Replicas) -> None:
        self.seq = 0
        self.commands: list[c.Command] = []
        self._fleet = fleet

    def take(self) -> list[c.Command]:
        """Remove and return the commands so far."""
        commands, self.commands = self.commands, []
        return commands

    def send(self, kind: Callable[..., c.Command], **fields: Any) -> int:
        """Send a command. Returns its number."""
        self.seq += 1
        self.commands.append(kind(seq=self.seq, **fields))
        return self.seq

    def send_to(self, replica: ReplicaState, kind: Callable[..., c.Command], **fields: Any) -> int:
        """Send a replica a command that it carries out after the previous one. Returns its number."""
        seq = self.seq + 1
        return self.send(kind, replica=replica.id, after=self._fleet.commanded(replica, seq), **fields)
