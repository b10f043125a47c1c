"""The partial-response pool: tokens of unfinished trajectories, stored as replicas send them.

Consumes: assignments and deltas of owners (replicas). Waits for: nothing. Invariants:
* One owner. The replica that began a trajectory last owns it, and deltas of any other are refused. Otherwise a replica that was
  declared dead could write into a trajectory that its successor generates.
* One version. Tokens of another version are dropped when a trajectory is begun again, unless versions may be mixed.
* No gap and no overlap. A delta is stored only after the last stored token. The same delta sent again is accepted and changes
  nothing, so a caller that lost the answer may repeat the call.
Ids, owners and lengths of partial trajectories are also kept in memory, so that an append reads nothing from the file.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tailrace.contracts import PartialDelta, Resume
from tailrace.trajstore.database import Database, select_ids
from tailrace.trajstore.errors import TrajectoryDataError, TrajectoryStateError
from tailrace.trajstore.packing import Precision, pack_logprobs, pack_tokens, unpack_logprobs, unpack_tokens
from tailrace.trajstore.records import Assignment, PartialResponse, Status


@dataclass(frozen=True, slots=True)
class _Entry:
    num: int
    group: int
    owner: str | None
    version: int
    length: int
    oldest: int | None


@dataclass(frozen=True, slots=True)
class _Known:
    num: int
    group: int
    status: Status
    prompt: bytes


class PartialResponsePool:
    """Part of `TrajectoryStore`.

    Args:
        database: the store's database.
        mixed_versions: whether several versions may write one trajectory.
        precision: how log-probabilities are stored.
        count: called with the name of a statistic and the amount to add.
    """

    def __init__(
        self, database: Database, *, mixed_versions: bool, precision: Precision, count: Callable[[str, int], None]
    ) -> None:
        self._database = database
        self._mixed = mixed_versions
        self._precision: Precision = precision
        self._count = count
        self._entries: dict[str, _Entry] = {}
        with database.locked() as connection:
            rows = connection.execute(
                "SELECT t.id, t.num, t.grp, t.owner, t.begun_version, coalesce(sum(d.count), 0), min(d.version) "
                "FROM trajectory t LEFT JOIN delta d USING (num) WHERE t.status = 'partial' GROUP BY t.num ORDER BY t.num"
            )
            self._entries = {row[0]: _Entry(*row[1:]) for row in rows}

    def begin(self, owner: str, version: int, items: Sequence[Assignment]) -> list[Resume]:
        repeated = len(items) - len({item.trajectory for item in items})
        if repeated:
            raise TrajectoryDataError(f"found {repeated} trajectories twice in one call, expected each once")
        with self._database.transaction() as connection:
            known = {
                row[0]: _Known(row[1], row[2], Status(row[3]), row[4])
                for row in select_ids(
                    connection,
                    "SELECT id, num, grp, status, prompt FROM trajectory WHERE id IN ({ids})",
                    [item.trajectory for item in items],
                )
            }
            entries: dict[str, _Entry] = {}
            counts: list[tuple[str, int]] = []
            resumes = []
            for item in items:
                found = known.get(item.trajectory)
                if found is None:
                    entries[item.trajectory] = _register(connection, owner, version, item)
                    counts.append(("begun", 1))
                    resumes.append(Resume(item.trajectory, item.prompt_tokens))
                    continue
                if found.group != item.group or found.prompt != pack_tokens(item.prompt_tokens):
                    raise TrajectoryStateError(
                        f"trajectory {item.trajectory} exists with another prompt or group than it is begun with; "
                        "an id names one trajectory of one run"
                    )
                if found.status in (Status.COMPLETE, Status.CONSUMED):
                    resumes.append(replace(_kept(connection, item, found.num), complete=True))
                    continue
                entries[item.trajectory], resume = self._adopt(connection, owner, version, item, found, counts)
                resumes.append(resume)
        self._entries.update(entries)
        for name, amount in counts:
            self._count(name, amount)
        return resumes

    def _adopt(
        self,
        connection: sqlite3.Connection,
        owner: str,
        version: int,
        item: Assignment,
        found: _Known,
        counts: list[tuple[str, int]],
    ) -> tuple[_Entry, Resume]:
        """Give an existing trajectory to a new owner and drop tokens that must not be kept."""
        old = self._entries.get(item.trajectory)
        drop = old is None or (old.version != version and not self._mixed)
        counts.append(("resumed" if old is not None else "revived", 1))
        dropped = 0
        if drop:
            (dropped,) = connection.execute(
                "SELECT coalesce(sum(count), 0) FROM delta WHERE num = ?", (found.num,)
            ).fetchone()
            connection.execute("DELETE FROM delta WHERE num = ?", (found.num,))
        connection.execute(
            "UPDATE trajectory SET status = 'partial', owner = ?, begun_version = ?, purpose = ?, metadata = ?, finish = NULL, "
            "reward = NULL, reason = NULL, tokens = NULL, oldest_version = NULL, completed_version = NULL "
            "WHERE num = ?",
            (owner, version, str(item.purpose), _json(item), found.num),
        )
        resume = Resume(item.trajectory, item.prompt_tokens) if drop else _kept(connection, item, found.num)
        kept = len(resume.kept_tokens)
        counts.extend([("dropped_tokens", dropped), ("kept_tokens", kept)])
        oldest = old.oldest if old is not None and kept else None
        return _Entry(found.num, found.group, owner, version, kept, oldest), resume

    def append(self, owner: str, deltas: Sequence[PartialDelta], trainer_version: int) -> list[str]:
        refused: dict[str, None] = {}
        rows: list[tuple[int, int, int, int, bytes, bytes]] = []
        finished: list[tuple[str, int, int, int, int]] = []
        changed: dict[str, _Entry | None] = {}
        written: dict[str, list[PartialDelta]] = {}
        resent = refusals = 0
        with self._database.transaction() as connection:
            for delta in deltas:
                name = delta.trajectory
                entry = changed[name] if name in changed else self._entries.get(name)
                if entry is not None and self._extends(owner, delta, entry):
                    count = len(delta.tokens)
                    oldest = entry.oldest
                    if count:
                        tokens, logprobs = pack_tokens(delta.tokens), pack_logprobs(delta.logprobs, self._precision)
                        rows.append((entry.num, entry.length, delta.version, count, tokens, logprobs))
                        oldest = delta.version if oldest is None else min(oldest, delta.version)
                    entry = replace(entry, length=entry.length + count, oldest=oldest)
                    changed[name] = entry
                    written.setdefault(name, []).append(delta)
                    if delta.finish is not None:
                        version = entry.version if entry.oldest is None else entry.oldest
                        finished.append((delta.finish, entry.length, version, trainer_version, entry.num))
                        changed[name] = None
                elif delta in written.get(name, ()) or self._is_stored(connection, owner, delta):
                    resent += 1
                else:
                    refused[name] = None
                    refusals += 1
            connection.executemany("INSERT INTO delta VALUES (?, ?, ?, ?, ?, ?)", rows)
            connection.executemany(
                "UPDATE trajectory SET status = 'complete', finish = ?, tokens = ?, oldest_version = ?, completed_version = ? "
                "WHERE num = ?",
                finished,
            )
        for name, entry in changed.items():
            if entry is None:
                self._entries.pop(name, None)
            else:
                self._entries[name] = entry
        self._count("deltas", len(rows))
        self._count("tokens", sum(row[3] for row in rows))
        self._count("resent", resent)
        self._count("refused", refusals)
        self._count("finished", len(finished))
        return list(refused)

    def _extends(self, owner: str, delta: PartialDelta, entry: _Entry) -> bool:
        """Whether a delta continues at the trajectory's end and has its owner and version."""
        if entry.owner != owner or delta.offset != entry.length:
            return False
        if delta.version != entry.version and not self._mixed:
            return False
        return bool(delta.tokens) or delta.finish is not None

    def _is_stored(self, connection: sqlite3.Connection, owner: str, delta: PartialDelta) -> bool:
        """Whether the same owner's delta is stored already: a repeated call whose first answer was lost."""
        row = connection.execute(
            "SELECT t.owner, t.status, t.finish, t.tokens, d.version, d.tokens, d.logprobs FROM trajectory t "
            "LEFT JOIN delta d ON d.num = t.num AND d.start = ? WHERE t.id = ?",
            (delta.offset, delta.trajectory),
        ).fetchone()
        if row is None:
            return False
        stored_owner, status, finish, length, version, tokens, logprobs = row
        if stored_owner != owner or status == Status.DISCARDED:
            return False
        if delta.finish is not None and (finish != delta.finish or length != delta.offset + len(delta.tokens)):
            return False
        if not delta.tokens:
            entry = self._entries.get(delta.trajectory)
            return delta.offset == (length if entry is None else entry.length)
        return bool(
            version == delta.version
            and tokens == pack_tokens(delta.tokens)
            and logprobs == pack_logprobs(delta.logprobs, self._precision)
        )

    def forget(self, trajectories: Sequence[str]) -> None:
        """Drop the in-memory entries of trajectories that are no longer partial."""
        for trajectory in trajectories:
            self._entries.pop(trajectory, None)

    def disown(self) -> None:
        """Take every partial trajectory from its owner."""
        with self._database.transaction() as connection:
            connection.execute("UPDATE trajectory SET owner = NULL WHERE status = 'partial'")
        self._entries = {name: replace(entry, owner=None) for name, entry in self._entries.items()}

    def tokens_of(self, trajectories: Iterable[str]) -> int:
        with self._database.locked():
            return sum(self._entries[name].length for name in trajectories if name in self._entries)

    def partials(self) -> list[PartialResponse]:
        with self._database.locked():
            return [
                PartialResponse(name, entry.group, entry.owner, entry.version, entry.length)
                for name, entry in self._entries.items()
            ]


def _register(connection: sqlite3.Connection, owner: str, version: int, item: Assignment) -> _Entry:
    cursor = connection.execute(
        "INSERT INTO trajectory (id, grp, purpose, status, owner, begun_version, prompt, metadata) "
        "VALUES (?, ?, ?, 'partial', ?, ?, ?, ?)",
        (item.trajectory, item.group, str(item.purpose), owner, version, pack_tokens(item.prompt_tokens), _json(item)),
    )
    return _Entry(cursor.lastrowid or 0, item.group, owner, version, 0, None)


def _kept(connection: sqlite3.Connection, item: Assignment, num: int) -> Resume:
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    for data, values, count in connection.execute(
        "SELECT tokens, logprobs, count FROM delta WHERE num = ? ORDER BY start", (num,)
    ):
        tokens += unpack_tokens(data)
        logprobs += unpack_logprobs(values, count)
    return Resume(item.trajectory, item.prompt_tokens, tokens, logprobs)


def _json(item: Assignment) -> str:
    try:
        return json.dumps(dict(item.metadata))
    except (TypeError, ValueError) as error:
        raise TrajectoryDataError(
            f"trajectory {item.trajectory}: found metadata that JSON cannot carry: {error}"
        ) from error
