"""The partial-response pool: tokens of unfinished trajectories, stored as replicas send them.

Consumes: assignments and deltas of owners (replicas). Waits for: nothing. Invariants:
* One owner. The replica that began a trajectory last owns it, and deltas of any other are refused. Otherwise a replica that was
  declared dead could write into a trajectory that its successor generates.
* One version. Tokens of another version are dropped when a trajectory is begun again, unless versions may be mixed.
* No gap and no overlap. A delta is stored only after the last stored token. The same delta sent again is accepted and changes
  nothing, so a caller that lost the answer may repeat the call.
* One answer for each turn. After the end of a turn, an environment's observation is the only thing that can be stored.
Ids, owners and lengths of partial trajectories are also kept in memory, so that an append reads nothing from the file.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tailrace.contracts import FinishReason, PartialDelta, Resume, SpanKind, repeated_tokens
from tailrace.trajstore.database import Database, finite, select_ids, text, whole
from tailrace.trajstore.errors import TrajectoryDataError, TrajectoryStateError
from tailrace.trajstore.records import Assignment, PartialResponse, Status, Turn
from tailrace.trajstore.token_bytes import (
    Precision,
    pack_logprobs,
    pack_tokens,
    same_logprobs,
    unpack_logprobs,
    unpack_tokens,
)
from tailrace.trajstore.turns import OPEN_TURNS, end_turn, ends_a_turn, forget_turns, turns_of


@dataclass(frozen=True, slots=True)
class _Entry:
    num: int
    group: int
    owner: str | None
    version: int
    length: int
    oldest: int | None
    turn_start: int = 0  # where the turn under way began, behind the last observation
    waits: int | None = None  # serial of the turn that waits for its observation
    observed: int = 0  # tokens of observations
    newest: int = 0  # version of its tokens, or at which it was begun

    def grown(self, count: int, oldest: int | None, newest: int) -> _Entry:
        """This entry with more tokens. It does not call `dataclasses.replace`, which would take most of an append's time."""
        of_turn = self.turn_start, self.waits, self.observed
        return _Entry(self.num, self.group, self.owner, self.version, self.length + count, oldest, *of_turn, newest)


@dataclass(frozen=True, slots=True)
class _Known:
    num: int
    group: int
    status: Status
    prompt: bytes


@dataclass(slots=True, eq=False)
class Append:
    """A call of `TrajectoryStore.append` that waits for its turn, with its deltas packed.

    Args:
        answer: trajectories with a refused delta, once it was carried out.
    """

    owner: str
    deltas: Sequence[PartialDelta]
    packed: list[tuple[bytes, bytes]]
    trainer_version: int | None
    answer: list[str] | None = None


_COMPLETE = (
    "UPDATE trajectory SET status = 'complete', finish = ?, tokens = ?, generated = ?, oldest_version = ?, "
    "completed_version = ? WHERE num = ?"
)


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
                "SELECT t.id, t.num, t.grp, t.owner, t.begun_version, coalesce(sum(d.count), 0), min(d.version), "
                "coalesce(sum(d.count * (d.observation > 0)), 0), max(t.begun_version, coalesce(max(d.version), 0)) "
                "FROM trajectory t LEFT JOIN delta d USING (num) WHERE t.status = 'partial' GROUP BY t.num ORDER BY t.num"
            ).fetchall()
            turns = {num: (start, waits) for num, start, waits in connection.execute(OPEN_TURNS)}
            for name, num, group, owner, version, length, oldest, observed, newest in rows:
                start, waits = turns.get(num, (0, None))
                self._entries[name] = _Entry(num, group, owner, version, length, oldest, start, waits, observed, newest)

    def begin(self, owner: str, version: int, items: Sequence[Assignment]) -> list[Resume]:
        version, _ = whole("version", version), text("owner", owner)
        items = [_checked(item) for item in items]
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
            forget_turns(connection, found.num)
        connection.execute(
            "UPDATE trajectory SET status = 'partial', owner = ?, begun_version = ?, purpose = ?, metadata = ?, finish = NULL, "
            "reward = NULL, reason = NULL, tokens = NULL, generated = NULL, oldest_version = NULL, completed_version = NULL, "
            "outline = NULL WHERE num = ?",
            (owner, version, str(item.purpose), _json(item), found.num),
        )
        counts.append(("dropped_tokens", dropped))
        if old is None or drop:
            return _Entry(found.num, found.group, owner, version, 0, None, newest=version), Resume(
                item.trajectory, item.prompt_tokens
            )
        counts.append(("kept_tokens", old.length))
        resume = replace(_kept(connection, item, found.num), turn_ended=old.waits is not None)
        return replace(old, owner=owner, version=version, newest=max(old.newest, version)), resume

    def pack(self, deltas: Sequence[PartialDelta]) -> list[tuple[bytes, bytes]]:
        """Tokens and log-probabilities of each delta, packed.

        Raises:
            TrajectoryDataError: one cannot be packed.
        """
        return [(pack_tokens(delta.tokens), pack_logprobs(delta.logprobs, self._precision)) for delta in deltas]

    def append(self, appends: Sequence[Append], trainer_version: int) -> None:
        """Carry out appends in one transaction, in order; each gets its answer."""
        changed: dict[str, _Entry | None] = {}
        counts: Counter[str] = Counter()
        with self._database.transaction() as connection:
            answers = [self._append(connection, one, trainer_version, changed, counts) for one in appends]
        for name, entry in changed.items():
            if entry is None:
                self._entries.pop(name, None)
            else:
                self._entries[name] = entry
        for what, amount in counts.items():
            self._count(what, amount)
        for one, answer in zip(appends, answers, strict=True):
            one.answer = answer

    def _append(
        self,
        connection: sqlite3.Connection,
        append: Append,
        trainer_version: int,
        before: dict[str, _Entry | None],
        counts: Counter[str],
    ) -> list[str]:
        """Store deltas. Returns the trajectories with a refused one. Entries that change are noted in `before`."""
        owner = append.owner
        now = trainer_version if append.trainer_version is None else whole("version", append.trainer_version)
        refused: dict[str, None] = {}
        rows: list[tuple[int, int, int, int, bytes, bytes]] = []
        finished: list[tuple[str, int, int, int, int, int]] = []
        changed: dict[str, _Entry | None] = {}
        written: dict[str, list[PartialDelta]] = {}
        for delta, (tokens, logprobs) in zip(append.deltas, append.packed, strict=True):
            name = delta.trajectory
            entry = changed[name] if name in changed else self._entry(name, before)
            if entry is not None and self._extends(owner, delta, entry):
                count = len(delta.tokens)
                oldest = entry.oldest
                if count:
                    rows.append((entry.num, entry.length, delta.version, count, tokens, logprobs))
                    oldest = delta.version if oldest is None else min(oldest, delta.version)
                entry = entry.grown(count, oldest, max(entry.newest, delta.version))
                if delta.turn_ends:
                    entry = replace(entry, waits=end_turn(connection, entry.num, entry.length))
                changed[name] = entry
                written.setdefault(name, []).append(delta)
                if delta.finish is not None:
                    finished.append(_end(entry, delta.finish, now))
                    changed[name] = None
            elif delta in written.get(name, ()) or self._is_stored(connection, owner, delta, self._entry(name, before)):
                counts["resent"] += 1
            else:
                refused[name] = None
                counts["refused"] += 1
        connection.executemany("INSERT INTO delta VALUES (?, ?, ?, ?, ?, ?, 0)", rows)
        connection.executemany(_COMPLETE, finished)
        before |= changed
        counts["deltas"] += len(rows)
        counts["tokens"] += sum(row[3] for row in rows)
        counts["finished"] += len(finished)
        return list(refused)

    def _entry(self, name: str, changed: dict[str, _Entry | None]) -> _Entry | None:
        return changed[name] if name in changed else self._entries.get(name)

    def _extends(self, owner: str, delta: PartialDelta, entry: _Entry) -> bool:
        """Whether a delta continues at the trajectory's end, outside of environments, and has its owner and version."""
        if entry.owner != owner or delta.offset != entry.length or entry.waits is not None:
            return False
        if delta.version != entry.version and not self._mixed:
            return False
        if delta.turn_ends:  # a turn has a token at least
            return entry.length + len(delta.tokens) > entry.turn_start
        return bool(delta.tokens) or delta.finish is not None

    def _is_stored(self, connection: sqlite3.Connection, owner: str, delta: PartialDelta, entry: _Entry | None) -> bool:
        """Whether the same owner's delta is stored already: a repeated call whose first answer was lost."""
        count = len(delta.tokens)
        row = connection.execute(
            "SELECT t.num, t.owner, t.status, t.finish, t.tokens, t.outline IS NOT NULL, d.start, d.count, d.version, "
            "d.tokens, d.logprobs FROM trajectory t LEFT JOIN delta d ON d.num = t.num AND NOT d.observation "
            "AND d.start <= ? AND d.start + d.count > ? WHERE t.id = ?",
            (delta.offset, delta.offset, delta.trajectory),
        ).fetchone()
        if row is None:
            return False
        num, stored_owner, status, finish, length, joined, start, size, version, tokens, logprobs = row
        if stored_owner != owner or status == Status.DISCARDED:
            return False
        if delta.finish is not None and (finish != delta.finish or length != delta.offset + count):
            return False
        if delta.turn_ends and not ends_a_turn(connection, num, delta.offset + count):
            return False
        if not delta.tokens and delta.turn_ends:
            return True
        if not delta.tokens:
            return delta.offset == (length if entry is None else entry.length)
        if start is None or version != delta.version or not (joined or (start, size) == (delta.offset, count)):
            return False
        at, width = delta.offset - start, len(logprobs) // size
        kept = logprobs[at * width : (at + count) * width]
        return bool(
            tokens[at * 4 : (at + count) * 4] == pack_tokens(delta.tokens)
            and len(kept) == count * width
            and same_logprobs(kept, delta.logprobs, self._precision)
        )

    def observe(
        self,
        trajectory: str,
        serial: int,
        tokens: Sequence[int],
        *,
        fresh: bool,
        finish: FinishReason | None,
        reward: float,
        session: bytes | None,
        trainer_version: int,
    ) -> Turn | None:
        done = finish is not None
        serial, reward = whole("turn", serial), finite(trajectory, reward)
        if not len(tokens) and not done:
            raise TrajectoryDataError(
                f"trajectory {trajectory}: found an observation without tokens, expected one at least, or the end: the model "
                "would go on behind its own end of turn"
            )
        with self._database.transaction() as connection:
            entry = self._entries.get(trajectory)
            if entry is not None and entry.waits == serial:
                entry = self._answer(connection, entry, tokens, fresh, done, reward, session)
                if finish is not None:
                    connection.execute(_COMPLETE, _end(entry, finish, trainer_version))
            else:  # told before, dropped, or begun anew since
                entry = None
            found = connection.execute(
                "SELECT t.num FROM turn u JOIN trajectory t USING (num) "
                "WHERE t.id = ? AND u.serial = ? AND u.count IS NOT NULL AND t.status <> 'discarded'",
                (trajectory, serial),
            ).fetchone()
            stored = None
            if found is not None:
                stored = next(turn for turn in turns_of(connection, found[0]) if turn.serial == serial)
        if entry is not None:
            self._count("observations", 1)
            if done:
                self._entries.pop(trajectory)
                self._count("finished", 1)
            else:
                self._entries[trajectory] = entry
        return stored

    def _answer(
        self,
        connection: sqlite3.Connection,
        entry: _Entry,
        tokens: Sequence[int],
        fresh: bool,
        done: bool,
        reward: float,
        session: bytes | None,
    ) -> _Entry:
        """Store the answer to the turn that waits for one."""
        count = len(tokens)
        if count:
            zeros = pack_logprobs([0.0] * count, self._precision)
            kind = int(SpanKind.FRESH if fresh else SpanKind.OBSERVATION)
            connection.execute(
                "INSERT INTO delta SELECT num, ?, version, ?, ?, ?, ? FROM delta WHERE num = ? ORDER BY start DESC LIMIT 1",
                (entry.length, count, pack_tokens(tokens), zeros, kind, entry.num),
            )
        connection.execute(
            "UPDATE turn SET count = ?, reward = ?, done = ? WHERE serial = ?", (count, reward, done, entry.waits)
        )
        if done:
            connection.execute("DELETE FROM session WHERE num = ?", (entry.num,))
        elif session is not None:
            connection.execute("INSERT OR REPLACE INTO session VALUES (?, ?, ?)", (entry.num, entry.waits, session))
        length = entry.length + count
        return replace(entry, length=length, turn_start=length, waits=None, observed=entry.observed + count)

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
            found = [self._entries[name] for name in trajectories if name in self._entries]
            return sum(entry.length - entry.observed for entry in found)

    def partials(self) -> list[PartialResponse]:
        with self._database.locked():
            return [
                PartialResponse(name, entry.group, entry.owner, entry.version, entry.length, entry.waits is not None)
                for name, entry in self._entries.items()
            ]


def _end(entry: _Entry, finish: FinishReason, trainer_version: int) -> tuple[str, int, int, int, int, int]:
    """The parameters of `_COMPLETE`. A version that generates was made before, whatever was consumed until now."""
    oldest = entry.version if entry.oldest is None else entry.oldest
    completed = max(trainer_version, entry.newest)
    return finish, entry.length, entry.length - entry.observed, oldest, completed, entry.num


def _register(connection: sqlite3.Connection, owner: str, version: int, item: Assignment) -> _Entry:
    cursor = connection.execute(
        "INSERT INTO trajectory (id, grp, purpose, status, owner, begun_version, prompt, metadata) "
        "VALUES (?, ?, ?, 'partial', ?, ?, ?, ?)",
        (item.trajectory, item.group, str(item.purpose), owner, version, pack_tokens(item.prompt_tokens), _json(item)),
    )
    return _Entry(cursor.lastrowid or 0, item.group, owner, version, 0, None, newest=version)


def _kept(connection: sqlite3.Connection, item: Assignment, num: int) -> Resume:
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    context, parts = 0, []
    for data, values, count, kind in connection.execute(
        "SELECT tokens, logprobs, count, observation FROM delta WHERE num = ? ORDER BY start", (num,)
    ):
        context = len(tokens) if kind == SpanKind.FRESH else context
        parts.append((unpack_tokens(data), kind))
        tokens += parts[-1][0]
        logprobs += unpack_logprobs(values, count)
    repeated = repeated_tokens(item.prompt_tokens, parts) if context else 0
    return Resume(item.trajectory, item.prompt_tokens, tokens, logprobs, context=context, repeated=repeated)


def plain(delta: PartialDelta) -> PartialDelta:
    """The same delta with tuples of numbers, where it came with arrays of numpy or torch.

    Raises:
        TrajectoryDataError: its version or its offset is no whole number.
    """
    version, offset = whole("version", delta.version), whole("offset", delta.offset)
    if type(delta.tokens) is type(delta.logprobs) is tuple and type(delta.version) is type(delta.offset) is int:
        return delta
    return replace(delta, offset=offset, version=version, tokens=tuple(delta.tokens), logprobs=tuple(delta.logprobs))


def _checked(item: Assignment) -> Assignment:
    text("trajectory", item.trajectory)
    group = whole(f"group of trajectory {item.trajectory}", item.group)
    if type(item.group) is int and type(item.prompt_tokens) is tuple:
        return item
    return replace(item, group=group, prompt_tokens=unpack_tokens(pack_tokens(item.prompt_tokens)))


def _json(item: Assignment) -> str:
    try:
        return json.dumps(dict(item.metadata))
    except (TypeError, ValueError) as error:
        raise TrajectoryDataError(
            f"trajectory {item.trajectory}: found metadata that JSON cannot carry: {error}"
        ) from error
