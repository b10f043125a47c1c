"""Commands in order, once each, over a transport that may delay, reorder and repeat them (StaleFlow, section 5.2).

Each command names the one before it (`after`), so a gap shows: what is behind a gap waits until it is filled. The chain of a
replica begins at 0 with each incarnation and each controller. A command that names none is carried out when it comes.
"""

from __future__ import annotations

from collections import deque

from tailrace.contracts import Abort, Interrupt, Pull, Route

ReplicaCommand = Route | Interrupt | Abort | Pull


class Order:
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
        """A command has arrived."""
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
        """Another controller takes over: its chain begins at 0, and what the last one sent and did not arrive is void."""
        self.last_seq = 0
        self._held_back.clear()

    def take(self) -> list[ReplicaCommand]:
        """What can be carried out now, in order."""
        commands = list(self._ready)
        self._ready.clear()
        return commands
