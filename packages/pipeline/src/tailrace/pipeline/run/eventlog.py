"""The event log: the controller's durable state. One JSON object a line; written before the commands are carried out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from tailrace.contracts import CodecError, Event, decode, encode
from tailrace.pipeline.errors import RunDirectoryError


class EventLog:
    """Appends events. A line survives the death of this process as soon as `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        cut_torn_line(path)
        self._file = path.open("ab", buffering=0)

    def append(self, now: float, event: Event) -> None:
        """Write one event with the run's clock in seconds."""
        line = {"t": now, **encode(event)}
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_events(path: Path) -> Iterator[tuple[float, Any]]:
    """The (time, event) pairs of a log.

    Raises:
        RunDirectoryError: a line is not an event. A last line that a crash cut short is left out.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                fields = json.loads(line)
                now = float(fields.pop("t"))
                yield now, decode(fields)
            except (ValueError, KeyError, TypeError, AttributeError, CodecError) as error:
                raise RunDirectoryError(
                    f"{path}, line {number}: found {line[:60]!r}, expected an event: {error}"
                ) from error


def cut_torn_line(path: Path) -> None:
    """Remove a last line that a crash cut short, so that the next append starts a line of its own."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)
