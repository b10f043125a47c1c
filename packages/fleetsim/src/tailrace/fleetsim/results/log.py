"""The event log of a simulated run in memory: the lines of a run directory's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tailrace.contracts import Command, Event
from tailrace.pipeline.run.eventlog import EventLog as FileLog
from tailrace.pipeline.run.eventlog import encode_instant

Instant = tuple[float, Sequence[Event], Sequence[Command]]


class InstantLog:
    """Takes instants.

    Args:
        keep: whether they are kept; otherwise events are only counted.
    """

    def __init__(self, *, keep: bool) -> None:
        self.instants: list[Instant] = []
        self.heard: list[Mapping[str, int]] = []
        """For each instant that is kept, the number of each member's last event in it."""
        self.handled = 0
        self._keep = keep

    def append(
        self, now: float, events: Sequence[Event], commands: Sequence[Command], heard: Mapping[str, int]
    ) -> None:
        self.handled += len(events)
        if self._keep:
            self.instants.append((now, events, commands))
            self.heard.append(heard)

    def check(self) -> None:
        """Nobody else writes it."""


class LogFile(InstantLog):
    """Writes instants to a file, as a real run does.

    Raises:
        RunDirectoryError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(keep=False)
        self._file = FileLog(path)

    def append(
        self, now: float, events: Sequence[Event], commands: Sequence[Command], heard: Mapping[str, int]
    ) -> None:
        super().append(now, events, commands, heard)
        self._file.append(now, events, commands)  # nobody attaches to a simulation

    def close(self) -> None:
        self._file.close()


class MemoryLog(Sequence[tuple[float, Event]]):
    """The events of a run in order, each with its time. Equal logs are equal byte for byte."""

    def __init__(self, instants: Sequence[Instant]) -> None:
        self.instants = instants

    @cached_property
    def _flat(self) -> list[tuple[float, Event]]:
        return [(now, event) for now, events, _ in self.instants for event in events]

    def __len__(self) -> int:
        return len(self._flat)

    def __getitem__(self, index: Any) -> Any:
        return self._flat[index]

    def __iter__(self) -> Iterator[tuple[float, Event]]:
        return iter(self._flat)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryLog) and self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self.digest())

    def lines(self) -> Iterator[bytes]:
        """One JSON line for each instant."""
        for now, events, commands in self.instants:
            yield encode_instant(now, events, commands)

    def to_bytes(self) -> bytes:
        """The log as JSON lines."""
        return b"".join(self.lines())

    def digest(self) -> str:
        """SHA-256 of its bytes."""
        digest = hashlib.sha256()
        for line in self.lines():
            digest.update(line)
        return digest.hexdigest()
