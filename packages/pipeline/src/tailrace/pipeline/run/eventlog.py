"""The event log: the controller's durable state. One line for each instant, written before its commands are carried out.

The first line names the format. Every other line is ``{"t": seconds, "events": [...], "commands": [...]}``: the events that
reached the controller together, and its commands. Everything known about a run can be computed from this file alone. Where
members sent events, ``"heard"`` has the number of each member's last one, so that another controller knows what it lacks.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from tailrace.contracts import Checkpoint, CodecError, Command, Event, Finish, decode
from tailrace.contracts.codec import encode_level
from tailrace.pipeline.errors import LogWriteError, RunDirectoryError
from tailrace.runtime.errors import SupersededError

FORMAT = 2
_KIND = "event log"
_COMPACT = (",", ":")
HEADER = json.dumps({"tailrace": _KIND, "format": FORMAT}, separators=_COMPACT).encode() + b"\n"
"""The first line of a log."""
_OUTLIVING = (Checkpoint, Finish)
"""The effects of these commands may survive a crash of the machine, so the log up to them must too."""
_BLOCK = 1 << 16
_Made = TypeVar("_Made", "Instant", "FollowedInstant")

_encode = json.JSONEncoder(separators=_COMPACT, default=encode_level, check_circular=False).encode


@dataclass(frozen=True, slots=True)
class Instant:
    """Events that reached the controller together, and its commands.

    Args:
        now: seconds on the run's clock.
        events: the events.
        commands: the commands.
        heard: the number of the last event of each member among them, by its name.
    """

    now: float
    events: list[Event]
    commands: list[Command]
    heard: dict[str, int] = field(default_factory=dict)

    @property
    def kinds(self) -> list[str]:
        """The names of its commands."""
        return [type(command).__name__ for command in self.commands]


@dataclass(frozen=True, slots=True)
class FollowedInstant:
    """An instant for code that replays the controller. The controller makes the commands again, so they are decoded on request.

    Args:
        now, events: see `Instant`.
        kinds: the names of its commands.
        plain: its commands, as JSON has them.
    """

    now: float
    events: list[Event]
    kinds: list[str]
    plain: list[dict[str, Any]]

    @property
    def commands(self) -> list[Command]:
        """Its commands.

        Raises:
            CodecError: one is damaged.
        """
        return [decode(command) for command in self.plain]


def encode_instant(
    now: float, events: Sequence[Event], commands: Sequence[Command], heard: Mapping[str, int] = MappingProxyType({})
) -> bytes:
    """The line of an instant. Equal instants give equal bytes."""
    instant: dict[str, Any] = {"t": now, "events": [*events], "commands": [*commands]}
    if heard:
        instant["heard"] = heard
    return _encode(instant).encode() + b"\n"


class EventLog:
    """Appends instants to a file, which it creates if needed.

    Once `append` has returned, its instant survives the death of this process, however it dies. A crash of the machine may
    lose the instants after the last sync, newest first, but none before it. The file is synced on opening, by the first
    `append` at least `sync_s` after the last sync, by every `append` with a `Checkpoint` or a `Finish` before it returns, and
    by `sync` and `close`.
    No other process may write to the file at the same time.

    Args:
        path: the file. An incomplete last line of an earlier process is cut off.
        sync_s: seconds of appended instants that a crash of the machine may lose.

    Raises:
        RunDirectoryError: the file is not an event log, or has another format version.
        LogWriteError: the file cannot be created.
    """

    def __init__(self, path: Path, *, sync_s: float = 1.0) -> None:
        self.path = path
        self._sync_s = sync_s
        self._end = 0
        self._failed: LogWriteError | None = None
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._error(error) from error
        self._open, self._inode = True, os.fstat(self._file).st_ino
        try:
            self._begin()
        except BaseException as error:
            self._open = False
            os.close(self._file)
            if isinstance(error, OSError) and not isinstance(error, RunDirectoryError):
                raise self._error(error) from error
            raise

    def append(
        self,
        now: float,
        events: Sequence[Event],
        commands: Sequence[Command],
        heard: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Write an instant, or nothing if this raises.

        Args:
            now: seconds on the run's clock.
            events: the events.
            commands: the commands.
            heard: the number of the last event of each member among them, by its name.

        Raises:
            SupersededError: another controller goes on with the run.
            LogWriteError: the disk is full or broken. The log ends with the previous instant. Once there is space again, the
                same instant may be appended; if the log could not be synced or cut, it must be opened again first.
        """
        self.check()
        line = encode_instant(now, events, commands, heard)
        durable = any(isinstance(command, _OUTLIVING) for command in commands)
        if self._failed is not None:
            raise self._failed
        try:
            self._write(line)
            if durable or time.monotonic() >= self._synced + self._sync_s:
                self._sync()
            self._end += len(line)
        except BaseException as error:  # an interrupt between two writes leaves half a line too
            try:
                os.ftruncate(self._file, self._end)
            except OSError as another:
                self._failed = self._error(another)
            if isinstance(error, OSError):
                raise self._error(error) from error
            raise

    def check(self) -> None:
        """Whether this is still the log: another controller that attaches goes on in a copy, and replaces the file by it.

        Raises:
            SupersededError: it is not.
        """
        if not self._open:
            return
        try:
            found = self.path.stat().st_ino
        except FileNotFoundError:
            return  # the run directory is gone: writing will say so
        if found != self._inode:
            raise SupersededError(
                f"{self.path}: found the log of a controller that has attached since, expected this one's"
            )

    def sync(self) -> None:
        """Return once all appended instants survive a crash of the machine.

        Raises:
            LogWriteError: they may not survive.
        """
        if self._failed is not None:
            raise self._failed
        try:
            self._sync()
        except OSError as error:
            raise self._error(error) from error

    def close(self) -> None:
        """Sync and close the file. A second close does nothing.

        Raises:
            LogWriteError: the file could not be synced. It is closed.
        """
        if not self._open:
            return
        self._open = False
        try:
            if self._failed is None:
                self.sync()
        finally:
            os.close(self._file)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is None:
            self.close()
            return
        with suppress(LogWriteError):  # the first error is the one to report
            self.close()

    def _begin(self) -> None:
        """Cut the file after its last complete line, and sync it."""
        size = os.fstat(self._file).st_size
        start = os.pread(self._file, _BLOCK, 0)
        if size < len(HEADER) and HEADER.startswith(start):
            os.ftruncate(self._file, 0)
            self._write(HEADER)
            self._end = len(HEADER)
        else:
            check_header(self.path, start.partition(b"\n")[0])
            self._end = last_line_end(self._file, size)
            if self._end < size:
                os.ftruncate(self._file, self._end)
        self._sync()
        entries = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(entries)
        finally:
            os.close(entries)

    def _write(self, data: bytes) -> None:
        written = os.write(self._file, data)
        while written < len(data):  # a full disk may take only a part of the data
            written += os.write(self._file, data[written:])

    def _sync(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:
            # A later sync would succeed although the data of this one is lost, so the log stays failed.
            self._failed = self._error(error)
            raise
        self._synced = time.monotonic()

    def _error(self, error: OSError) -> LogWriteError:
        return LogWriteError(error.errno, error.strerror or str(error), str(self.path))


def take_over_log(path: Path) -> None:
    """Go on in a copy of a log, so that a controller which was taken for dead and wakes up writes to none that is read.

    Raises:
        LogWriteError: there is no room for it.
    """
    copy = path.with_name(f"{path.name}.partial")
    try:
        shutil.copyfile(path, copy)
        with copy.open("rb+") as file:
            os.fsync(file.fileno())
        copy.replace(path)
    except OSError as error:
        copy.unlink(missing_ok=True)
        raise LogWriteError(error.errno, error.strerror or str(error), str(path)) from error


def read_log(path: Path) -> Iterator[Instant]:
    """The instants of a log. An incomplete last line is left out.

    Raises:
        RunDirectoryError: the file is missing, is not an event log, has another format version or a damaged line.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise RunDirectoryError(f"{path}: found no event log ({error.strerror}), expected one") from error
    with file:
        header = file.readline()
        if len(header) < len(HEADER) and HEADER.startswith(header):
            return
        check_header(path, header)
        for number, line in enumerate(file, 2):
            if not line.endswith(b"\n"):
                return
            yield _read(path, number, line, _instant)


class LogFollower:
    """Reads a log that grows: each call goes on behind the last whole line that was read.

    Args:
        path: the log, which may not be there yet.

    Attributes:
        line: the number of the line that was read last; the header is the first.
        read_bytes: how far it has been read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = self.read_bytes = 0
        self._inode: int | None = None

    @property
    def size(self) -> int:
        """Bytes of the log now; 0 if it is not there."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def replaced(self) -> bool:
        """Whether the file is another than the one that was read, or shorter: then all of it is to be read anew."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return self._inode is not None
        return self._inode is not None and (found.st_ino != self._inode or found.st_size < self.read_bytes)

    def instants(self) -> Iterator[FollowedInstant]:
        """The instants since the last call, to the last whole line. One that is not taken is read by the next call.

        Raises:
            RunDirectoryError: see `read_log`; no log at all has no instants.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            inode = os.fstat(file.fileno()).st_ino
            if self._inode is not None and inode != self._inode:
                return
            file.seek(self.read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                if self.line == 0:
                    check_header(self.path, line)
                else:
                    yield _read(self.path, self.line + 1, line, _followed)
                self._inode, self.line, self.read_bytes = inode, self.line + 1, self.read_bytes + len(line)


def read_events(path: Path) -> Iterator[tuple[float, Event]]:
    """The events of a log, each with its time.

    Raises:
        RunDirectoryError: see `read_log`.
    """
    for instant in read_log(path):
        for event in instant.events:
            yield instant.now, event


def _instant(fields: dict[str, Any]) -> Instant:
    return Instant(
        float(fields["t"]),
        [decode(event) for event in fields["events"]],
        [decode(command) for command in fields["commands"]],
        {str(name): int(number) for name, number in fields.get("heard", {}).items()},
    )


def _followed(fields: dict[str, Any]) -> FollowedInstant:
    commands = fields["commands"]
    return FollowedInstant(
        float(fields["t"]),
        [decode(event) for event in fields["events"]],
        [command["is"] for command in commands],
        commands,
    )


def _read(path: Path, number: int, line: bytes, made: Callable[[dict[str, Any]], _Made]) -> _Made:
    """Read a line of the log.

    Raises:
        RunDirectoryError: it is damaged.
    """
    try:
        return made(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError, CodecError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise RunDirectoryError(
            f"{path}, line {number}: found {_excerpt(line)}, expected an instant of the event log: {why}"
        ) from error


def check_header(path: Path, line: bytes) -> None:
    """Check the first line of a log.

    Raises:
        RunDirectoryError: it is of another format.
    """
    try:
        fields: Any = json.loads(line)
    except ValueError:
        fields = None
    if isinstance(fields, dict) and fields.get("tailrace") == _KIND:
        if fields.get("format") == FORMAT:
            return
        found = f"an event log of format {fields.get('format')!r}"
    elif isinstance(fields, dict) and {"t", "is"} <= fields.keys():
        found = "an event log of format 1"
    else:
        found = _excerpt(line)
    raise RunDirectoryError(
        f"{path}: found {found}, expected an event log of format {FORMAT}; read it with the version that wrote it"
    )


def _excerpt(line: bytes) -> str:
    shown = line[:60].rstrip(b"\n")
    return repr(shown.decode(errors="replace"))


def last_line_end(file: int, size: int) -> int:
    """The offset after the last newline of an open file of so many bytes; 0 without one."""
    end = size
    while end:
        start = max(0, end - _BLOCK)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
