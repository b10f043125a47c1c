"""Puts commands in order, once each, although the transport may delay, reorder or repeat them (StaleFlow, section 5.2).

Each command names the one before it (`after`). If that one is missing, the command waits for it. A replica's chain begins at 0
with each incarnation and each controller. A command without `after` is carried out on arrival.
"""

from __future__ import annotations

from collections import deque

from tailrace.contracts import Abort, Interrupt, Lend, Pull, Return, Route

ReplicaCommand = Route | Interrupt | Abort | Pull | Lend | Return


class CommandOrder:
    """Puts commands in order. Not thread-safe."""

    def __init__(self) -> None:
        self.last_seq = 0
        self._ready: deque[ReplicaCommand] = deque()
        self._held_back: dict[int, ReplicaCommand] = {}

    @property
    def ready(self) -> bool:
        """Whether a command can be carried out now."""
        return bool(self._ready)

    @property
    def held_back(self) -> int:
        """Commands that wait for an earlier one to arrive."""
        return len(self._held_back)

    def add(self, command: ReplicaCommand) -> None:
        """Take a command that arrived."""
        if isinstance(command, Abort) or command.after is None:
            self._ready.append(command)
            return
        if command.seq <= self.last_seq:
            return  # it came twice
        self._held_back[command.after] = command
        while (following := self._held_back.pop(self.last_seq, None)) is not None:
            self._ready.append(following)
            self.last_seq = following.seq

    def restart(self) -> None:
        """Begin a new chain at 0 for another controller. Commands that wait for an earlier one are dropped."""
        self.last_seq = 0
        self._held_back.clear()

    def take(self) -> list[ReplicaCommand]:
        """Remove and return the commands that can be carried out now, in order."""
        commands = list(self._ready)
        self._ready.clear()
        return commands
