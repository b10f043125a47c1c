"""Finished trajectories: their content, and their states: rewarded, consumed exactly once, rolled back or discarded.

Invariant: a trajectory has at most one consumption, by primary key. `consume` refuses a second one. Only `rollback`, after the
trainer has lost the versions that it was consumed for, makes it available again.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from tailrace.contracts import Experience, ExperienceOutline, FinishReason, PackedTokens, Purpose, Segment, SpanKind
from tailrace.trajstore.archive import answered, record
from tailrace.trajstore.database import Database, chunks, finite, select_ids, whole
from tailrace.trajstore.errors import (
    AlreadyConsumedError,
    TrajectoryStateError,
    UnknownTrajectoryError,
)
from tailrace.trajstore.records import Assignment, ConsumedTrajectory, Conversation, Recovery, Status, Trainable
from tailrace.trajstore.token_bytes import all_finite, highest_token, join_logprobs, unpack_logprobs, unpack_tokens
from tailrace.trajstore.turns import TABLES, TURNED, environment_of, turns_of

EXPERIENCE_COLUMNS = f"id, num, grp, prompt, finish, reward, completed_version, metadata, purpose, {TURNED}, status"
CONTENT_COLUMNS = f"num, prompt, finish, metadata, purpose, {TURNED}"
CONVERSATION_COLUMNS = "id, num, grp, prompt, metadata, purpose"


def experience_of(connection: sqlite3.Connection, row: tuple[Any, ...]) -> Experience:
    """The experience of a row of `EXPERIENCE_COLUMNS`.

    Raises:
        TrajectoryStateError: the trajectory is not finished, or was discarded.
    """
    name, num, group, prompt, finish, reward, completed_version, metadata, purpose, turned, status = row
    _require_finished(name, finish, status)
    return Experience(
        trajectory=str(name),
        group=group,
        prompt=unpack_tokens(prompt),
        segments=tuple(segments_of(connection, num)),
        finish=FinishReason(finish),
        reward=reward,
        completed_version=completed_version,
        metadata=_metadata(connection, num, metadata, purpose, turned),
    )


def _metadata(connection: sqlite3.Connection, num: int, metadata: str, purpose: str, turned: int) -> dict[str, object]:
    environment = environment_of(connection, num) if turned else {}
    return {**json.loads(metadata), "purpose": purpose, **environment}


def _require_finished(name: str, finish: str | None, status: str) -> None:
    if finish is None or status == Status.DISCARDED:
        raise TrajectoryStateError(
            f"trajectory {name}: found {status}, expected complete or consumed, to read an experience"
        )


def outline_of(connection: sqlite3.Connection, row: tuple[Any, ...]) -> ExperienceOutline:
    """The outline of a row of `EXPERIENCE_COLUMNS` and `outline`."""
    name, num, group, prompt, finish, reward, completed_version, metadata, purpose, turned, status, outline = row
    _require_finished(name, finish, status)
    about = json.loads(outline) if outline is not None else about_tokens(segment_rows(delta_rows(connection, num)))
    return ExperienceOutline(
        trajectory=str(name),
        group=group,
        prompt=hashlib.blake2b(prompt, digest_size=16).digest(),
        prompt_tokens=len(prompt) // 4,
        spans=tuple([(version, count, SpanKind(kind)) for version, count, kind in about["spans"]]),
        highest_token=max(highest_token(prompt), about["highest"]),
        finite=about["finite"],
        finish=FinishReason(finish),
        reward=reward,
        completed_version=completed_version,
        metadata=_metadata(connection, num, metadata, purpose, turned),
    )


def packed_of(connection: sqlite3.Connection, num: int, prompt: bytes | None) -> PackedTokens:
    """The tokens of a finished trajectory."""
    rows = connection.execute(
        "SELECT tokens, logprobs, count FROM delta WHERE num = ? ORDER BY start", (num,)
    ).fetchall()
    if len(rows) == 1:
        return PackedTokens(prompt, rows[0][0], rows[0][1])
    tokens = b"".join(data for data, _, _ in rows)
    return PackedTokens(prompt, tokens, join_logprobs([(data, count) for _, data, count in rows]))


_SegmentRow = tuple[int, int, int, int, bytes, bytes]  # start, version, observation, count, tokens, log-probabilities


def delta_rows(connection: sqlite3.Connection, num: int) -> list[_SegmentRow]:
    """The rows of a trajectory as they are stored."""
    return connection.execute(
        "SELECT start, version, observation, count, tokens, logprobs FROM delta WHERE num = ? ORDER BY start", (num,)
    ).fetchall()


def segment_rows(rows: Iterable[_SegmentRow]) -> list[_SegmentRow]:
    """The rows of a trajectory, with those of each segment joined."""
    joined = []
    for (version, observation), run in groupby(rows, key=itemgetter(1, 2)):
        parts = list(run)
        if len(parts) == 1:
            joined += parts
            continue
        tokens = b"".join([part[4] for part in parts])
        logprobs = join_logprobs([(part[5], part[3]) for part in parts])
        joined.append((parts[0][0], version, observation, sum([part[3] for part in parts]), tokens, logprobs))
    return joined


def about_tokens(rows: Sequence[_SegmentRow]) -> dict[str, Any]:
    """What `outline_of` says of a trajectory's tokens, as JSON values."""
    return {
        "spans": [(version, count, observation) for _, version, observation, count, _, _ in rows],
        "highest": max((highest_token(row[4]) for row in rows), default=-1),
        "finite": all(all_finite(row[5], row[3]) for row in rows),
    }


def join_deltas(connection: sqlite3.Connection, nums: Sequence[int]) -> dict[int, str]:
    """Store the tokens of finished trajectories in one row for each segment, so that they are read as they are sent.

    Returns the outline of each.
    """
    shorter: list[tuple[int]] = []
    whole: list[tuple[int, *_SegmentRow]] = []
    outlines: dict[int, str] = {}
    for num in nums:
        stored = delta_rows(connection, num)
        rows = segment_rows(stored)
        outlines[num] = json.dumps(about_tokens(rows))
        if len(rows) < len(stored):
            shorter.append((num,))
            whole += [(num, *row) for row in rows]
    connection.executemany("DELETE FROM delta WHERE num = ?", shorter)
    connection.executemany(
        "INSERT INTO delta (num, start, version, observation, count, tokens, logprobs) VALUES (?, ?, ?, ?, ?, ?, ?)",
        whole,
    )
    return outlines


def segments_of(connection: sqlite3.Connection, num: int) -> Iterator[Segment]:
    """The segments of a trajectory. Consecutive deltas of one version become one segment, but for observations."""
    of: tuple[int, int] | None = None  # version, and what the tokens are
    tokens: list[int] = []
    logprobs: list[float] = []
    for version, observation, count, token_data, logprob_data in connection.execute(
        "SELECT version, observation, count, tokens, logprobs FROM delta WHERE num = ? ORDER BY start", (num,)
    ):
        if of is not None and of != (version, observation):
            yield Segment(of[0], tuple(tokens), tuple(logprobs), bool(of[1]), of[1] == SpanKind.FRESH)
            tokens, logprobs = [], []
        of = (version, observation)
        tokens.extend(unpack_tokens(token_data))
        logprobs.extend(unpack_logprobs(logprob_data, count))
    if of is not None:
        yield Segment(of[0], tuple(tokens), tuple(logprobs), bool(of[1]), of[1] == SpanKind.FRESH)


def conversation_of(connection: sqlite3.Connection, row: tuple[Any, ...]) -> Conversation:
    """The conversation of a row of `CONVERSATION_COLUMNS`."""
    name, num, group, prompt, metadata, purpose = row
    saved = connection.execute("SELECT data, serial FROM session WHERE num = ?", (num,)).fetchone()
    return Conversation(
        trajectory=str(name),
        group=group,
        prompt=unpack_tokens(prompt),
        metadata={**json.loads(metadata), "purpose": purpose},
        turns=tuple(turns_of(connection, num)),
        session=saved[0] if saved else None,
        session_serial=saved[1] if saved else None,
    )


def content_of(connection: sqlite3.Connection, row: tuple[Any, ...]) -> dict[str, Any]:
    """A row of `CONTENT_COLUMNS` with its tokens, as JSON values."""
    num, prompt, finish, metadata, purpose, turned = row
    segments = list(segments_of(connection, num))
    return {
        "prompt": unpack_tokens(prompt),
        "tokens": [token for segment in segments for token in segment.tokens],
        "versions": [segment.version for segment in segments for _ in segment.tokens],
        "logprobs": [value for segment in segments for value in segment.logprobs],
        **answered([(segment.version, len(segment.tokens), segment.kind) for segment in segments]),
        "finish": finish,
        "metadata": _metadata(connection, num, metadata, purpose, turned),
    }


_SELECT_TRIMMABLE = (
    "SELECT {} FROM trajectory LEFT JOIN consumption c USING (num) "
    "WHERE (status = 'discarded' OR (status = 'consumed' AND c.version <= ?) "
    "OR (status = 'complete' AND purpose = 'eval' AND reward IS NOT NULL AND completed_version < ?))"
)
_TRAINED = tuple(each.name for each in fields(ConsumedTrajectory))
_TRAINER_VERSION, _TRIMMED = "trainer_version", "trimmed_version"
_ARCHIVED, _HEAD_BYTES, _HEAD = "archived_bytes", "archive_head_bytes", "archive_head"


class Archived(NamedTuple):
    """What is in an archive.

    Args:
        nbytes: bytes that `TrajectoryStore.trim` has archived there.
        head_bytes: how many of its first bytes it is known again by; 0 if it cannot be.
        head: their CRC-32.
    """

    nbytes: int = 0
    head_bytes: int = 0
    head: int = 0


class Settlements:
    """Part of `TrajectoryStore`.

    Args:
        database: the store's database.
        initial_version: the trainer's version before the first batch was consumed.
    """

    def __init__(self, database: Database, *, initial_version: int) -> None:
        self._database = database
        with database.locked() as connection:
            stored = _setting(connection, _TRAINER_VERSION)
        self.trainer_version = whole("initial version", initial_version) if stored is None else stored

    def statuses(self, ids: Sequence[str]) -> dict[str, Status]:
        """The status of each trajectory that is known, in the order of `ids`."""
        with self._database.reading() as connection:
            found = {name: Status(status) for name, status in _select(connection, "id, status", ids)}
        return {name: found[name] for name in ids if name in found}

    def experiences(self, ids: Sequence[str]) -> list[Experience]:
        with self._database.reading() as connection:
            rows = {row[0]: row for row in _select(connection, EXPERIENCE_COLUMNS, ids)}
            _require_known(ids, rows)
            return [experience_of(connection, rows[name]) for name in ids]

    def trainable(self) -> list[Trainable]:
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT id, grp, oldest_version, completed_version, reward, tokens FROM trajectory "
                "WHERE status = 'complete' AND purpose = ? AND reward IS NOT NULL ORDER BY num",
                (str(Purpose.TRAIN),),
            ).fetchall()
        return [Trainable(*row) for row in rows]

    def finished(self, ids: Sequence[str]) -> list[Experience]:
        with self._database.reading() as connection:
            rows = {row[0]: row for row in _select(connection, EXPERIENCE_COLUMNS, ids) if row[-1] == Status.COMPLETE}
            return [experience_of(connection, rows[name]) for name in ids if name in rows]

    def outlines(self, ids: Sequence[str]) -> list[ExperienceOutline]:
        with self._database.reading() as connection:
            rows = {row[0]: row for row in _select(connection, f"{EXPERIENCE_COLUMNS}, outline", ids)}
            _require_known(ids, rows)
            return [outline_of(connection, rows[name]) for name in ids]

    def packed(self, wanted: Sequence[tuple[str, bool]]) -> list[PackedTokens]:
        ids = [name for name, _ in wanted]
        with self._database.reading() as connection:
            rows = {row[0]: row for row in _select(connection, "id, num, prompt, finish, status", ids)}
            _require_known(ids, rows)
            found = []
            for name, with_prompt in wanted:
                _, num, prompt, finish, status = rows[name]
                _require_finished(name, finish, status)
                found.append(packed_of(connection, num, prompt if with_prompt else None))
            return found

    def assignments(self, ids: Sequence[str]) -> list[Assignment]:
        with self._database.reading() as connection:
            rows = {row[0]: row for row in _select(connection, "id, grp, prompt, purpose, metadata", ids)}
        _require_known(ids, rows)
        return [
            Assignment(name, group, unpack_tokens(prompt), purpose, json.loads(metadata))
            for name, group, prompt, purpose, metadata in (rows[name] for name in ids)
        ]

    def conversations(self, ids: Sequence[str]) -> list[Conversation]:
        with self._database.reading() as connection:
            rows = {row[0]: row for row in _select(connection, f"{CONVERSATION_COLUMNS}, status", ids)}
            kept = [rows[name][:-1] for name in ids if name in rows and rows[name][-1] != Status.DISCARDED]
            return [conversation_of(connection, row) for row in kept]

    def set_reward(self, trajectory: str, reward: float) -> bool:
        with self._database.transaction() as connection:
            return _give_reward(connection, trajectory, reward)

    def set_rewards(self, rewards: Mapping[str, float]) -> None:
        rewards = {trajectory: finite(trajectory, reward) for trajectory, reward in rewards.items()}
        with self._database.transaction() as connection:
            found = list(_select(connection, f"id, {_STANDING}", list(rewards)))
            complete = [
                (rewards[name], num, joined) for name, status, num, joined in found if status == Status.COMPLETE
            ]
            _put_rewards(connection, complete)

    def discard(self, ids: Sequence[str], reason: str) -> list[str]:
        with self._database.transaction() as connection:
            found = {name: Status(status) for name, status in _select(connection, "id, status", ids)}
            consumed = [name for name, status in found.items() if status is Status.CONSUMED]
            if consumed:
                raise TrajectoryStateError(
                    f"trajectory {consumed[0]}: found consumed, expected one that was not trained on"
                )
            dropped = [name for name in dict.fromkeys(ids) if found.get(name, Status.DISCARDED) is not Status.DISCARDED]
            connection.executemany(
                "UPDATE trajectory SET status = 'discarded', reason = ? WHERE id = ?",
                [(reason, name) for name in dropped],
            )
        return dropped

    def consume(self, ids: Sequence[str], version: int) -> bool:
        """Returns False if the same batch was already consumed for the version."""
        version = whole("version", version)
        repeated = [name for name, count in Counter(ids).items() if count > 1]
        if repeated:
            raise AlreadyConsumedError(f"trajectory {repeated[0]}: found twice in one batch, expected once")
        with self._database.transaction() as connection:
            rows = {row[0]: row for row in _select(connection, "id, num, status, reward, purpose", ids)}
            _require_known(ids, rows)
            before = {num for (num,) in connection.execute("SELECT num FROM consumption WHERE version = ?", (version,))}
            if before and before == {rows[name][1] for name in ids}:
                return False
            for name in ids:
                _require_consumable(connection, *rows[name])
            connection.executemany("INSERT INTO consumption VALUES (?, ?)", [(rows[name][1], version) for name in ids])
            connection.executemany(
                "UPDATE trajectory SET status = 'consumed' WHERE num = ?", [(rows[name][1],) for name in ids]
            )
            reached = max(version, self.trainer_version)
            _set(connection, _TRAINER_VERSION, reached)
        self.trainer_version = reached
        return True

    def rollback(self, durable_version: int) -> list[str]:
        durable_version = whole("durable version", durable_version)
        with self._database.transaction() as connection:
            trimmed = _setting(connection, _TRIMMED)
            if trimmed is not None and durable_version < trimmed:
                raise TrajectoryStateError(
                    f"found durable version {durable_version}, expected {trimmed} or later: trajectories that were trained on "
                    f"for version {trimmed} and before were trimmed"
                )
            lost = connection.execute(
                "SELECT t.id, t.num FROM consumption c JOIN trajectory t USING (num) WHERE c.version > ? ORDER BY num",
                (durable_version,),
            ).fetchall()
            connection.execute("DELETE FROM consumption WHERE version > ?", (durable_version,))
            connection.executemany(
                "UPDATE trajectory SET status = 'complete' WHERE num = ?", [(num,) for _, num in lost]
            )
            _set(connection, _TRAINER_VERSION, durable_version)
        self.trainer_version = durable_version
        return [name for name, _ in lost]

    def fence(self, durable_version: int) -> int:
        """Refuse a rollback to before this version from now on. Returns the version of which that was said before."""
        with self._database.transaction() as connection:
            before = _setting(connection, _TRIMMED) or 0
            _set(connection, _TRIMMED, max(durable_version, before))
        return before

    def unfence(self, durable_version: int) -> None:
        """Refuse a rollback to before this version only: nothing was forgotten since `fence`."""
        with self._database.transaction() as connection:
            _set(connection, _TRIMMED, durable_version)

    def trimmable(self, durable_version: int) -> list[tuple[int, str, bool, int]]:
        """What `TrajectoryStore.trim` forgets: number, id, whether it was trained on, tokens; by version."""
        with self._database.reading() as connection:
            return connection.execute(
                _SELECT_TRIMMABLE.format("num, id, status = 'consumed', coalesce(tokens, 0)")
                + " ORDER BY c.version, num",
                (durable_version, durable_version),
            ).fetchall()

    def forget(self, nums: Sequence[int], durable_version: int, archived: Archived | None) -> int:
        """Forget those that still are trimmable. Returns their number.

        Args:
            nums: their numbers.
            durable_version: the version of `trimmable`.
            archived: the archive with them; None without one.
        """
        with self._database.transaction() as connection:
            query = _SELECT_TRIMMABLE.format("num, status, coalesce(generated, 0)")
            over: list[tuple[int, str, int]] = []
            for some in chunks(nums):  # one that was dropped may have been begun anew
                places = ",".join("?" * len(some))
                over += connection.execute(f"{query} AND num IN ({places})", (durable_version, durable_version, *some))
            counts = Counter((status, tokens if status == Status.CONSUMED else 0) for _, status, tokens in over)
            connection.executemany(
                "INSERT INTO trimmed VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
                [(status, tokens, count) for (status, tokens), count in counts.items()],
            )
            for table in ("delta", "consumption", *TABLES, "trajectory"):
                connection.executemany(f"DELETE FROM {table} WHERE num = ?", [(num,) for num, _, _ in over])  # noqa: S608
            if archived is not None:
                _note(connection, archived)
        return len(over)

    @property
    def archived(self) -> Archived:
        """The archive after the last trim, or the file of the last export if nothing was archived yet."""
        with self._database.locked() as connection:
            return Archived(*(_setting(connection, name) or 0 for name in (_ARCHIVED, _HEAD_BYTES, _HEAD)))

    def note(self, file: Archived) -> None:
        """Note the archive, or what may become it."""
        with self._database.transaction() as connection:
            _note(connection, file)

    def consumed_tokens(self) -> list[int]:
        """Number of generated tokens of each trajectory that was trained on, trimmed or not."""
        with self._database.reading() as connection:
            here = connection.execute("SELECT generated FROM trajectory WHERE status = 'consumed'").fetchall()
            gone = connection.execute("SELECT tokens, count FROM trimmed WHERE status = 'consumed'").fetchall()
        return [*(tokens for tokens, count in gone for _ in range(count)), *(tokens for (tokens,) in here)]

    def recover(self) -> Recovery:
        with self._database.locked() as connection:
            held = connection.execute(
                "SELECT id, reward FROM trajectory WHERE status = 'complete' ORDER BY num"
            ).fetchall()
            partial = connection.execute(
                "SELECT t.id, t.begun_version, coalesce(sum(d.count), 0) FROM trajectory t LEFT JOIN delta d USING (num) "
                "WHERE t.status = 'partial' GROUP BY t.num ORDER BY t.num"
            ).fetchall()
        return Recovery(dict(held), {name: (version, tokens) for name, version, tokens in partial})

    def audit(self) -> dict[str, object]:
        with self._database.reading() as connection:
            counts = Counter(dict(connection.execute("SELECT status, count(*) FROM trajectory GROUP BY status")))
            counts.update(dict(connection.execute("SELECT status, sum(count) FROM trimmed GROUP BY status")))
            twice = connection.execute(
                "SELECT t.id FROM consumption c JOIN trajectory t USING (num) GROUP BY c.num HAVING count(*) > 1"
            ).fetchall()
            mismatched = connection.execute(
                "SELECT t.id FROM trajectory t LEFT JOIN consumption c USING (num) "
                "WHERE (t.status = 'consumed') <> (c.num IS NOT NULL)"
            ).fetchall()
            torn = connection.execute(
                "SELECT t.id FROM trajectory t LEFT JOIN delta d USING (num) WHERE t.tokens IS NOT NULL "
                "GROUP BY t.num HAVING coalesce(sum(d.count), 0) <> t.tokens "
                "OR coalesce(sum(d.count * (d.observation = 0)), 0) <> t.generated"
            ).fetchall()
        return {
            **{str(status): counts[status] for status in Status},
            "total": sum(counts.values()),
            "consumed_twice": [name for (name,) in twice],
            "inconsistent": sorted({name for (name,) in [*mismatched, *torn]}),
        }

    def consumed(self, ids: Sequence[str] | None) -> list[ConsumedTrajectory]:
        query = (
            "SELECT t.id, t.grp, t.oldest_version, t.completed_version, c.version, t.reward, t.tokens, t.generated "
            "FROM trajectory t JOIN consumption c USING (num)"
        )
        with self._database.reading() as connection:
            if ids is None:
                return [ConsumedTrajectory(*row) for row in connection.execute(f"{query} ORDER BY c.version, t.num")]
            known = {row[0]: row for row in select_ids(connection, query + " WHERE t.id IN ({ids})", ids)}
        return [ConsumedTrajectory(*known[name]) for name in ids if name in known]

    def content(self, trajectory: str) -> dict[str, Any]:
        """One finished trajectory as JSON values, for `TrajectoryStore.export_jsonl`."""
        with self._database.reading() as connection:
            row = next(_select(connection, CONTENT_COLUMNS, [trajectory]))
            return content_of(connection, row)

    def records(self, rows: Iterable[ConsumedTrajectory]) -> Iterator[bytes]:
        """Trajectories that were trained on as records of an archive."""
        for some in chunks(rows):
            with self._database.reading() as connection:
                wanted = [row.trajectory for row in some]
                found = {row[0]: row[1:] for row in _select(connection, f"id, {CONTENT_COLUMNS}, outline", wanted)}
                made = [_record(connection, row, found[row.trajectory]) for row in some]
            yield from made


def _record(connection: sqlite3.Connection, trained: ConsumedTrajectory, row: tuple[Any, ...]) -> bytes:
    num, prompt, finish, metadata, purpose, turned, outline = row
    about = json.loads(outline) if outline is not None else about_tokens(segment_rows(delta_rows(connection, num)))
    header = {name: getattr(trained, name) for name in _TRAINED} | {
        "finish": finish,
        "metadata": _metadata(connection, num, metadata, purpose, turned),
        "spans": about["spans"],
    }
    return record(header, packed_of(connection, num, prompt))


def _require_consumable(
    connection: sqlite3.Connection, name: str, num: int, status: str, reward: float | None, purpose: str
) -> None:
    if status == Status.CONSUMED:
        (before,) = connection.execute("SELECT version FROM consumption WHERE num = ?", (num,)).fetchone()
        raise AlreadyConsumedError(f"trajectory {name}: found consumed for version {before}, expected never consumed")
    if status != Status.COMPLETE:
        raise TrajectoryStateError(f"trajectory {name}: found {status}, expected complete, to be consumed")
    if reward is None:
        raise TrajectoryStateError(f"trajectory {name}: found no reward, expected one before it is trained on")
    if purpose != Purpose.TRAIN:
        raise TrajectoryStateError(
            f"trajectory {name}: found purpose {purpose}, expected {Purpose.TRAIN}, to be trained on"
        )


def _select(connection: sqlite3.Connection, columns: str, ids: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    # The columns are constants of this package.
    return select_ids(connection, f"SELECT {columns} FROM trajectory WHERE id IN ({{ids}})", ids)  # noqa: S608


def _require_known(ids: Iterable[str], known: Container[str]) -> None:
    for name in ids:
        if name not in known:
            raise UnknownTrajectoryError(f"found no trajectory {name} in the store; it was never begun")


_STANDING = f"status, num, outline IS NOT NULL OR purpose <> '{Purpose.TRAIN}'"
"""A trajectory's status and number, and whether its tokens need not be joined: they were, or it is not trained on."""


def _give_reward(connection: sqlite3.Connection, trajectory: str, reward: float) -> bool:
    """Set the reward of a finished trajectory. Returns False if it was discarded."""
    reward = finite(trajectory, reward)
    row = next(_select(connection, _STANDING, [trajectory]), None)
    if row is None:
        raise UnknownTrajectoryError(f"found no trajectory {trajectory} in the store; it was never begun")
    status, num, joined = Status(row[0]), row[1], row[2]
    if status is Status.DISCARDED:
        return False
    if status is not Status.COMPLETE:
        raise TrajectoryStateError(f"trajectory {trajectory}: found {status}, expected complete, to set a reward")
    _put_rewards(connection, [(reward, num, joined)])
    return True


def _put_rewards(connection: sqlite3.Connection, rewards: Sequence[tuple[float, int, int]]) -> None:
    """Store each reward of a number, with whether its tokens need not be joined."""
    outlines = join_deltas(connection, [num for _, num, joined in rewards if not joined])
    connection.executemany(
        "UPDATE trajectory SET reward = ?, outline = coalesce(?, outline) WHERE num = ?",
        [(reward, outlines.get(num), num) for reward, num, _ in rewards],
    )


def _setting(connection: sqlite3.Connection, name: str) -> int | None:
    row = connection.execute("SELECT value FROM setting WHERE name = ?", (name,)).fetchone()
    return None if row is None else int(row[0])


def _note(connection: sqlite3.Connection, archived: Archived) -> None:
    for name, value in zip((_ARCHIVED, _HEAD_BYTES, _HEAD), archived, strict=True):
        _set(connection, name, value)


def _set(connection: sqlite3.Connection, name: str, value: int) -> None:
    connection.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (name, value))
