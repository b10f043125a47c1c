"""The SQLite file of a trajectory store: opened by one process, safe to call from any thread.

A transaction is acknowledged when it returns. It is then in the write-ahead log and survives the death of the process.
`synchronous` decides whether it also survives the death of the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import operator
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from tailrace.trajstore.errors import StoreBusyError, StoreClosedError, StoreFormatError, TrajectoryDataError
from tailrace.trajstore.turns import SCHEMA as TURNS_SCHEMA

_Item = TypeVar("_Item")
Synchronous = Literal["off", "normal", "full"]

_APPLICATION_ID = 0x54524C53  # "TRLS"
_FORMAT = 5
_WAIT_S = 10.0
_HELD: dict[tuple[int, int], int] = {}  # the lock files that this process holds, and their descriptors
_READERS = 8  # connections that wait for the next to read
_TOO_LARGE = 2**63  # for an integer of SQLite
_CHUNK = 500  # ids in one query; SQLite's lowest limit on parameters is 999

_SCHEMA = (
    """
CREATE TABLE trajectory (
    num INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    grp INTEGER NOT NULL,
    purpose TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('partial', 'complete', 'consumed', 'discarded')),
    owner TEXT,
    begun_version INTEGER NOT NULL,
    prompt BLOB NOT NULL,
    metadata TEXT NOT NULL,
    finish TEXT,
    reward REAL,
    reason TEXT,
    tokens INTEGER,
    generated INTEGER,
    oldest_version INTEGER,
    completed_version INTEGER,
    outline TEXT
);
CREATE INDEX trajectory_by_status ON trajectory (status);
-- Response tokens as they arrived, one row for each delta. An observation (1) is what an environment answered, and one that
-- begins a context is fresh (2). Once `outline` of their trajectory is set, one row for each segment.
CREATE TABLE delta (
    num INTEGER NOT NULL REFERENCES trajectory,
    start INTEGER NOT NULL,
    version INTEGER NOT NULL,
    count INTEGER NOT NULL,
    tokens BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    observation INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (num, start)
) WITHOUT ROWID;
-- The primary key makes it impossible to consume a trajectory twice.
CREATE TABLE consumption (
    num INTEGER PRIMARY KEY REFERENCES trajectory,
    version INTEGER NOT NULL
);
CREATE INDEX consumption_by_version ON consumption (version);
-- Trajectories that were trimmed: their number by final status and, for those that were trained on, by length.
CREATE TABLE trimmed (status TEXT NOT NULL, tokens INTEGER NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (status, tokens))
    WITHOUT ROWID;
CREATE TABLE setting (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
    + TURNS_SCHEMA
)

_FROM_4 = "ALTER TABLE trajectory ADD COLUMN outline TEXT;"
# From the format before turns: all of its tokens were generated.
_FROM_3 = (
    """
ALTER TABLE trajectory ADD COLUMN generated INTEGER;
UPDATE trajectory SET generated = tokens;
ALTER TABLE delta ADD COLUMN observation INTEGER NOT NULL DEFAULT 0;
"""
    + TURNS_SCHEMA
    + _FROM_4
)
_SCHEMA_FROM = {3: _FROM_3, 4: _FROM_4}


class Database:
    """A connection that threads share under one lock, others that read beside it, and the lock file that keeps processes out.

    Args:
        path: the database file; None keeps everything in memory.
        synchronous: ``normal`` survives the death of the process, ``full`` also that of the machine; ``off`` leaves flushing to
            the system.
        open_timeout_s: how long to wait until who has the file open closes it; None: 10 s for another process, and not at all
            for this one.

    Raises:
        StoreBusyError: another process still has the file open, or this one has.
        StoreFormatError: the file is not a trajectory store, or has another format version.
    """

    def __init__(self, path: Path | None, *, synchronous: Synchronous, open_timeout_s: float | None) -> None:
        if synchronous not in ("off", "normal", "full"):
            raise StoreFormatError(f"found synchronous={synchronous!r}, expected 'off', 'normal' or 'full'")
        # Readers open it later, whatever the process's directory is then.
        self.path = path = None if path is None else path.absolute()
        self._lock = threading.RLock()
        self._held: tuple[int, int] | None = None if path is None else _take(path, open_timeout_s)
        self._sharing = threading.Lock()  # of `_readers`; never held while anything is read
        self._readers: list[sqlite3.Connection] = []
        self._open = True
        try:
            self._connection = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
            self._prepare(synchronous)
        except BaseException:
            self.close()
            raise

    def _prepare(self, synchronous: Synchronous) -> None:
        try:
            kind, version, tables = (
                self._connection.execute(query).fetchone()[0]
                for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
            )
        except sqlite3.DatabaseError as error:
            raise StoreFormatError(
                f"{self.path}: found no SQLite database ({error}), expected a trajectory store"
            ) from error
        if tables and (kind != _APPLICATION_ID or version not in (_FORMAT, *_SCHEMA_FROM)):
            raise StoreFormatError(
                f"{self.path}: found a database of kind {kind:#x}, format {version}, "
                f"expected a trajectory store of format {_FORMAT}; move it away or name another file"
            )
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {synchronous.upper()}")
        self._connection.execute("PRAGMA foreign_keys = ON")
        if not tables or version != _FORMAT:
            # One transaction, so that a kill leaves an empty file, or one of the old format, and not half a schema.
            self._connection.executescript(
                f"BEGIN IMMEDIATE; PRAGMA application_id = {_APPLICATION_ID}; "
                f"PRAGMA user_version = {_FORMAT}; {_SCHEMA_FROM[version] if tables else _SCHEMA} COMMIT;"
            )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: all of it happens or, if the body raises, nothing."""
        with self._lock:
            connection = self._ready()
            connection.execute("BEGIN IMMEDIATE")
            try:
                with _told():
                    yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def locked(self) -> Iterator[sqlite3.Connection]:
        """Keep other threads out, to read or to change memory together with the file."""
        with self._lock:
            yield self._ready()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """What is committed now, to read beside writes and other readers. A store in memory keeps other threads out."""
        if self.path is None:
            with self.locked() as connection, _told():
                yield connection
            return
        with self._sharing:
            self._ready()
            reader = self._readers.pop() if self._readers else None
        if reader is None:
            reader = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
            reader.execute("PRAGMA query_only = ON")
        try:
            reader.execute("BEGIN")
            with _told():
                yield reader
        finally:
            reader.rollback()
            with self._sharing:
                kept = self._open and len(self._readers) < _READERS
                if kept:
                    self._readers.append(reader)
            if not kept:
                reader.close()

    def _ready(self) -> sqlite3.Connection:
        if not self._open:
            raise StoreClosedError(f"the trajectory store {self.path or 'in memory'} is closed; open it again")
        return self._connection

    def close(self) -> None:
        """Close the file, so that another process may open it. A second close does nothing."""
        with self._lock, self._sharing:
            self._open = False
            while self._readers:
                self._readers.pop().close()
            if hasattr(self, "_connection"):
                self._connection.close()
            if self._held is not None:
                _let_go(self._held)
                self._held = None


def chunks(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    """Some items in lists, each as long as a query may have placeholders at most."""
    left = iter(items)
    while chunk := list(islice(left, _CHUNK)):
        yield chunk


def select_ids(connection: sqlite3.Connection, query: str, ids: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of a query, in whose text ``{ids}`` stands for the placeholders of the ids."""
    for chunk in chunks(ids):
        yield from connection.execute(query.format(ids=",".join("?" * len(chunk))), chunk)


def _identity(handle: int) -> tuple[int, int]:
    found = os.fstat(handle)
    return found.st_dev, found.st_ino


def _let_go(held: tuple[int, int]) -> None:
    handle = _HELD.pop(held, None)
    if handle is not None:  # else a process has forked this one, which never had the lock
        os.close(handle)


def _forked() -> None:
    """Close the lock files in a process that has just been forked: it would hold the locks after its parent's death."""
    for held in list(_HELD):
        _let_go(held)


os.register_at_fork(after_in_child=_forked)


def _take(path: Path, timeout_s: float | None) -> tuple[int, int]:
    """Lock the file beside the database. The kernel releases the lock when the process dies, however it dies."""
    if path.is_dir():
        raise StoreFormatError(f"{path}: found a folder, expected the path of a file")
    lock = path.with_name(path.name + ".lock")
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        raise StoreFormatError(f"{path}: found no folder {path.parent}, expected one; create it first") from error
    own = _identity(handle) in _HELD
    waits_s = (0.0 if own else _WAIT_S) if timeout_s is None else timeout_s
    end = time.monotonic() + waits_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                owner = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(handle)
                raise StoreBusyError(
                    f"{path}: found the store open in this process already, expected it to be closed first"
                    if own
                    else f"{path}: waited {waits_s:g} s for process {owner}, which has the store open; it has a single writer"
                ) from None
            time.sleep(0.02)
        else:
            try:
                os.ftruncate(handle, 0)
                os.pwrite(handle, str(os.getpid()).encode(), 0)
            except BaseException:  # the disk is full
                os.close(handle)
                raise
            held = _identity(handle)
            _HELD[held] = handle
            return held


# What a file can hold.


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What SQLite says of text that is no UTF-8, in words of this package."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise TrajectoryDataError(f"found {error.object!r}, expected text that UTF-8 can hold") from None


def whole(name: str, value: int) -> int:
    """A whole number as a plain `int`: SQLite would keep one of numpy as its bytes.

    Raises:
        TrajectoryDataError: it is no whole number, or has more than 64 bits.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = _TOO_LARGE
    if not -_TOO_LARGE <= number < _TOO_LARGE:
        raise TrajectoryDataError(f"found {name} {value!r}, expected a whole number of at most 64 bits")
    return number


def finite(trajectory: str, reward: Any) -> float:
    """A reward as a plain `float`: SQLite would keep a `float32` of numpy as its bytes.

    Raises:
        TrajectoryDataError: it is no finite number.
    """
    try:
        number = math.nan if isinstance(reward, str) else float(reward)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan  # numpy and torch say each in its way that it is none
    if not math.isfinite(number):
        raise TrajectoryDataError(f"trajectory {trajectory}: found reward {reward!r}, expected a finite number")
    return number


def text(name: str, value: str) -> str:
    """An id or a name that a file can hold.

    Raises:
        TrajectoryDataError: it is no text, or no UTF-8.
    """
    try:
        value.encode()
    except (AttributeError, UnicodeEncodeError):
        raise TrajectoryDataError(f"found {name} {value!r}, expected text that UTF-8 can hold") from None
    return value
