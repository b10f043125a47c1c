"""The data module of asynchronous RL (Laminar section 3.1): partial-response pool and experience buffer in one SQLite file.

    begin ──► partial ──append(finish)──► complete ──set_reward, consume──► consumed
               │  │ ▲                         ▲  │                             │
               │  │ └─ observe(done)? ────────┤  │                             │
               │  └─ append(turn_ends) ─► an environment answers               │
               └──── discard ─────────────────┼──┴──► discarded                │
                                              └────────── rollback ────────────┘

Replicas send tokens while they generate them, so the death of a replica loses only tokens that it had not sent. Everything that
a call has acknowledged survives SIGKILL of this process, and a call whose answer was lost may be repeated. Only one process
has the store open; its threads may call at the same time.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from tailrace.contracts import Experience, ExperienceOutline, FinishReason, PackedTokens, PartialDelta, Resume
from tailrace.trajstore.archive import MAGIC, end_of_rows, is_lines
from tailrace.trajstore.database import Database, Synchronous, whole
from tailrace.trajstore.errors import StoreFormatError
from tailrace.trajstore.partials import Append, PartialResponsePool, plain
from tailrace.trajstore.records import (
    Assignment,
    ConsumedTrajectory,
    Conversation,
    PartialResponse,
    Recovery,
    Status,
    StoreStats,
    Trainable,
    Turn,
)
from tailrace.trajstore.settlements import Archived, Settlements
from tailrace.trajstore.token_bytes import Precision

TRIM_TOKENS = 2**19
"""About how many tokens `trim` deletes in one transaction."""
_HEAD_BYTES = 4096  # the first trajectories of a file, which no other one has


def _slices(rows: Iterable[tuple[int, str, bool, int]]) -> Iterator[list[tuple[int, str, bool, int]]]:
    part, tokens = [], 0
    for row in rows:
        part.append(row)
        tokens += row[3] + 256  # a trajectory without tokens costs something too
        if tokens >= TRIM_TOKENS:
            yield part
            part, tokens = [], 0
    if part:
        yield part


def _known(file: FileIO, nbytes: int) -> Archived:
    """The first bytes of a file, and what it is known by."""
    file.seek(0)
    head = file.read(min(nbytes, _HEAD_BYTES))
    return Archived(nbytes, len(head), zlib.crc32(head))


class TrajectoryStore:
    """Trajectories from their first token until they are trained on.

    Args:
        path: the database file, created if missing, with a lock file beside it. None keeps everything in memory.
        mixed_versions: whether several weight versions may write one trajectory (partial rollout). Otherwise each trajectory
            has one version (Laminar sections 2.4 and 9), and tokens of another are dropped when it is begun again.
        synchronous: ``"normal"`` survives the death of the process, ``"full"`` also that of the machine; ``"off"`` leaves
            flushing to the system.
        logprobs: ``"float64"`` keeps log-probabilities exactly, in single precision where that is exact, as of all that
            engines compute; ``"float32"`` always takes half of the space.
        initial_version: the trainer's version before the first batch was consumed.
        open_timeout_s: how long to wait until who has the file open closes it; None: 10 s for another process, and not at all
            for this one.

    Raises:
        StoreBusyError: another process still has the file open, or this one has.
        StoreFormatError: the file is something else, or `logprobs` or `synchronous` is none of its words.
    """

    def __init__(
        self,
        path: Path | str | None = None,
        *,
        mixed_versions: bool = False,
        synchronous: Synchronous = "normal",
        logprobs: Precision = "float64",
        initial_version: int = 0,
        open_timeout_s: float | None = None,
    ) -> None:
        if logprobs not in ("float32", "float64"):
            raise StoreFormatError(f"found logprobs={logprobs!r}, expected 'float32' or 'float64'")
        self._database = Database(
            None if path is None else Path(path), synchronous=synchronous, open_timeout_s=open_timeout_s
        )
        self._counts: Counter[str] = Counter()
        self._waiting: deque[Append] = deque()
        self._trimming = threading.Lock()  # held beside the database's own, and taken before it
        self._closing = False
        try:
            self._pool = PartialResponsePool(
                self._database, mixed_versions=mixed_versions, precision=logprobs, count=self._count
            )
            self._ledger = Settlements(self._database, initial_version=initial_version)
        except BaseException:
            self._database.close()
            raise

    def _count(self, name: str, amount: int) -> None:
        self._counts[name] += amount

    # -- the partial-response pool

    def begin(self, owner: str, version: int, items: Sequence[Assignment]) -> list[Resume]:
        """Register trajectories, or take them over, for an owner that generates them with a version.

        From now on the deltas of any earlier owner are refused. A trajectory that was discarded starts again
        without tokens. A finished one is returned as complete and not changed.

        Args:
            owner: unique for each life of a replica, for example ``"replica-3#2"``. If a restarted replica used the same
                name, late deltas of its former life would be accepted.
            version: the weight version that the owner serves.
            items: the trajectories.

        Returns:
            The existing tokens of each, in order. Without `mixed_versions`, kept tokens are all of `version`.

        Raises:
            TrajectoryStateError: an id exists with another prompt or group.
            TrajectoryDataError: an id occurs twice, or an id, the owner, a number, a prompt or metadata cannot be stored.
        """
        with self._database.locked():
            return self._pool.begin(owner, version, items)

    def append(self, owner: str, deltas: Sequence[PartialDelta], *, trainer_version: int | None = None) -> list[str]:
        """Store new tokens, in one transaction for the whole call and for those of other threads that wait meanwhile.

        A delta is refused if its trajectory is unknown, finished or another owner's, if it leaves a gap or overlaps, if its
        version is not the trajectory's, or if the last turn waits for its environment. A delta that is stored already is
        accepted and changes nothing.

        Args:
            owner: the replica that sends the deltas.
            deltas: the new tokens.
            trainer_version: the trainer's version now, stored with trajectories that finish; None: the newest version for
                which a batch was consumed. One of the trajectory's own that is newer counts in its place.

        Returns:
            Trajectories with a refused delta; the owner must stop generating them.

        Raises:
            TrajectoryDataError: a token or log-probability cannot be stored. No delta of the call is then stored.
        """
        deltas = [plain(delta) for delta in deltas]
        mine = Append(owner, deltas, self._pool.pack(deltas), trainer_version)
        self._waiting.append(mine)
        with self._database.locked():
            if mine.answer is None:  # otherwise another call, which waited before this one, did it too
                appends = [self._waiting.popleft() for _ in range(len(self._waiting))]
                # one that failed with its transaction is not there any more, and is carried out alone
                appends = appends if mine in appends else [mine]
                try:
                    self._pool.append(appends, self._ledger.trainer_version)
                except Exception:
                    if len(appends) == 1:
                        raise
                    self._pool.append([mine], self._ledger.trainer_version)  # another one may be at fault
        assert mine.answer is not None
        return mine.answer

    def assignments(self, ids: Iterable[str]) -> list[Assignment]:
        """The assignments with which trajectories were begun last, in order: `begin` takes them after a crash.

        Raises:
            UnknownTrajectoryError: the store does not hold one of them.
        """
        return self._ledger.assignments(list(ids))

    def conversations(self, ids: Sequence[str]) -> list[Conversation]:
        """Trajectories as their environments need them, in order; those that are unknown or were discarded are left out."""
        return self._ledger.conversations(ids)

    def observe(
        self,
        trajectory: str,
        serial: int,
        tokens: Sequence[int],
        *,
        done: bool = False,
        reward: float = 0.0,
        finish: FinishReason = FinishReason.STOP,
        session: bytes | None = None,
        trainer_version: int | None = None,
        fresh: bool = False,
    ) -> Turn | None:
        """Store what an environment answered to a turn, in one transaction. The first answer to a turn stays.

        The tokens become an observation segment: its version is that of the segment before it, its log-probabilities are 0.0.

        Args:
            trajectory: the trajectory.
            serial: the turn, as in `conversations`.
            tokens: the observation's token ids; they may be missing only where the trajectory is done.
            done: whether the environment has ended the trajectory, which is then complete.
            reward: the environment's reward of this step. The sum over all steps is ``metadata["environment"]["reward"]`` of
                the experience.
            finish: why the trajectory ended, if it is done: ``LENGTH`` where a limit left no room for another turn.
            session: the environment's state behind this turn, to restore it from; None keeps the last one.
            trainer_version: as in `append`, if the trajectory is done.
            fresh: whether the observation begins a context (`Segment.fresh`).

        Returns:
            The turn as it is stored: with this answer, or with the one that came first. None if the answer comes too late:
            the trajectory was dropped, or generated anew.

        Raises:
            TrajectoryDataError: a token or the reward cannot be stored, or there is no token. Nothing is stored.
        """
        with self._database.locked():
            now = self._ledger.trainer_version if trainer_version is None else whole("version", trainer_version)
            return self._pool.observe(
                trajectory,
                serial,
                tokens,
                fresh=fresh,
                finish=finish if done else None,
                reward=reward,
                session=session,
                trainer_version=now,
            )

    def partials(self) -> list[PartialResponse]:
        """The trajectories that are being generated, with their lengths."""
        return self._pool.partials()

    def partial_tokens(self, ids: Iterable[str]) -> int:
        """Generated tokens so far of those of the trajectories that are being generated."""
        return self._pool.tokens_of(ids)

    # -- the experience buffer

    def experiences(self, ids: Sequence[str]) -> list[Experience]:
        """Finished trajectories with their data, in order. Their metadata also names the purpose.

        Raises:
            UnknownTrajectoryError: a trajectory was never begun.
            TrajectoryStateError: a trajectory is not finished, or was discarded.
        """
        return self._ledger.experiences(ids)

    def finished(self, ids: Sequence[str]) -> list[Experience]:
        """The experiences of those trajectories that are complete and not consumed, in order; others are left out."""
        return self._ledger.finished(ids)

    def outlines(self, ids: Sequence[str]) -> list[ExperienceOutline]:
        """Finished trajectories without their tokens, in order: what ranks of a trainer plan a batch by.

        Raises:
            UnknownTrajectoryError, TrajectoryStateError: as `experiences`.
        """
        return self._ledger.outlines(ids)

    def packed(self, wanted: Sequence[tuple[str, bool]]) -> list[PackedTokens]:
        """The tokens of finished trajectories, in order, as they are stored: nothing is unpacked.

        Args:
            wanted: ids, each with whether its prompt is wanted too.

        Raises:
            UnknownTrajectoryError, TrajectoryStateError: as `experiences`.
        """
        return self._ledger.packed(wanted)

    def trainable(self) -> list[Trainable]:
        """The trajectories that `consume` takes now: complete, rewarded and for training; those begun first are first."""
        return self._ledger.trainable()

    @property
    def trainer_version(self) -> int:
        """The newest version for which a batch was consumed; before the first, `initial_version`."""
        return self._ledger.trainer_version

    def statuses(self, ids: Sequence[str]) -> dict[str, Status]:
        """The status of each trajectory that the store knows; the others are left out."""
        return self._ledger.statuses(ids)

    def set_reward(self, trajectory: str, reward: float) -> bool:
        """Give a finished trajectory its reward; a second one replaces the first.

        Returns:
            False if the trajectory was discarded, so that the reward came too late.

        Raises:
            UnknownTrajectoryError: the trajectory was never begun.
            TrajectoryStateError: the trajectory is not finished, or is consumed already.
            TrajectoryDataError: the reward is not a finite number.
        """
        return self._ledger.set_reward(trajectory, reward)

    def set_rewards(self, rewards: Mapping[str, float]) -> None:
        """Give finished trajectories their rewards, in one transaction.

        Those for which `set_reward` would come too late are left out: unknown, discarded, begun anew or consumed ones.

        Raises:
            TrajectoryDataError: a reward is not a finite number. No trajectory then has its new reward.
        """
        self._ledger.set_rewards(rewards)

    def discard(self, ids: Sequence[str], reason: str) -> list[str]:
        """Drop trajectories on purpose, whatever their state.

        Returns:
            The trajectories that this call dropped; ids that are unknown or were discarded before are skipped.

        Raises:
            TrajectoryStateError: a trajectory was trained on. No trajectory is then dropped.
        """
        with self._database.locked():
            dropped = self._ledger.discard(ids, reason)
            self._pool.forget(dropped)
            return dropped

    def consume(self, ids: Sequence[str], version: int) -> None:
        """Mark a batch as trained on: all of it or, on any error, none.

        If the same batch was already consumed for the version, nothing changes, so a caller that lost the answer may repeat
        the call. What several calls consumed for a version is one batch: only a call with all of it is a repetition.

        Args:
            ids: the trajectories of the batch.
            version: the version that the trainer makes with the batch.

        Raises:
            AlreadyConsumedError: a trajectory was consumed before, or is in the batch twice.
            TrajectoryStateError: a trajectory is not complete, has no reward, or is not for training.
            UnknownTrajectoryError: a trajectory was never begun.
        """
        with self._database.locked():
            if self._ledger.consume(ids, version):
                self._count("consumed", len(ids))

    def rollback(self, durable_version: int) -> list[str]:
        """Undo every consumption for a version after the durable one, since the trainer has lost those updates.

        Returns:
            The trajectories that may be consumed again.

        Raises:
            TrajectoryStateError: trajectories consumed for a later version were trimmed. Nothing is undone.
        """
        with self._database.locked():
            undone = self._ledger.rollback(durable_version)
            self._count("rolled_back", len(undone))
            return undone

    def trim(self, durable_version: int, archive: Path | str | None = None, *, within_s: float = math.inf) -> int:
        """Forget trajectories that no `rollback` to this version or a later one needs, so that the store stays bounded.

        It reads and writes files beside other calls, which wait only while a slice of `TRIM_TOKENS` is deleted.

        These are trajectories consumed for this version or an earlier one, discarded ones, and evaluations rewarded
        before it. Counts and lengths are kept. The store does not know trimmed ids any more, so give every attempt a new id.

        Args:
            durable_version: the version.
            archive: a file to which trajectories that were trained on are appended first, each once, even if this process dies
                in between: packed records, which `read_trained` reads, or JSON lines if its name ends with ``.jsonl``. What
                another store archived there stays before them.
            within_s: after so many seconds no further slice is begun; a next call goes on.

        Returns:
            Number of trajectories that were forgotten; 0 once there are none.

        Raises:
            StoreFormatError: the archive is a file of something else. It stays as it is, and no trajectory is forgotten.
        """
        until = time.monotonic() + within_s
        with self._trimming:
            durable_version = whole("durable version", durable_version)
            before = self._ledger.fence(durable_version)
            forgotten = 0
            try:
                for part in _slices(self._ledger.trimmable(durable_version)):
                    if self._closing or (forgotten and time.monotonic() >= until):
                        break
                    trained = [name for _, name, was_trained, _ in part if was_trained]
                    archived = None if archive is None or not trained else self._archive(Path(archive), trained)
                    forgotten += self._ledger.forget([num for num, *_ in part], durable_version, archived)
            except BaseException:
                if not forgotten:
                    self._ledger.unfence(before)
                raise
            return forgotten

    def _archive(self, archive: Path, names: Sequence[str]) -> Archived:
        """Archive trajectories. Returns what is archived.

        After it the file may have others: an `export` wrote them, and its next rows are these, or a process that died before it
        trimmed. What is the same stays, so that no row of an export is lost; what is not, is cut off.
        """
        with archive.open("a+b", buffering=0) as file:
            rows = self._ledger.consumed(names)
            return _known(file, self._write(file, archive, rows, self._begin(file, archive, rows)))

    def _begin(self, file: FileIO, path: Path, rows: Sequence[ConsumedTrajectory]) -> int:
        """Where rows belong in an archive: behind what this store archived there, or behind all that others did."""
        if (own := self._archived_in(file)) is not None:
            return own
        first = b"".join(self._records(path, rows[:1], first=True))
        file.seek(0)
        if first.startswith(file.read(len(first))):  # a process died as it wrote the first ones, or the file is new
            return 0
        end = end_of_rows(path)
        self._ledger.note(_known(file, end))  # before these are written: if this process dies, they are known again
        return end

    def _archived_in(self, file: FileIO) -> int | None:
        """Bytes that this store has archived in a file; None if that is another file than the one that it knows."""
        archived = self._ledger.archived
        if not archived.head_bytes:  # archived by an earlier release, if anything was
            return archived.nbytes or None
        return archived.nbytes if _known(file, archived.head_bytes)[1:] == archived[1:] else None

    def _write(self, file: FileIO, path: Path, rows: Iterable[ConsumedTrajectory], begin: int) -> int:
        """Write trajectories to a file for `path` from a position on, or from its end. Returns where they end.

        Bytes that the file has there already are not written again. If this raises, the file ends with a whole trajectory.
        """
        size = file.seek(0, os.SEEK_END)
        end = file.seek(min(begin, size))
        there = end < size
        try:
            for record in self._records(path, rows, first=not end):
                if there and file.read(len(record)) != record:
                    file.truncate(end)
                    there = False
                left = memoryview(b"" if there else record)
                while left:  # a full disk may take only a part of it
                    left = left[file.write(left) :]
                end += len(record)
        except BaseException:
            if not there:
                with suppress(OSError):
                    file.truncate(end)
            raise
        os.fsync(file.fileno())
        return end

    def _records(self, path: Path, rows: Iterable[ConsumedTrajectory], *, first: bool) -> Iterator[bytes]:
        if is_lines(path):
            yield from (self._line(row) for row in rows)
        else:
            if first:
                yield MAGIC
            yield from self._ledger.records(rows)

    def recover(self, *, keep_owners: bool = False) -> Recovery:
        """The trajectories in the store after a crash. Unfinished ones lose their owners.

        Replicas that survived the crash cannot write until they begin their trajectories again.

        Args:
            keep_owners: unfinished trajectories keep their owners, since only the process of this store had died.
        """
        with self._database.locked():
            if not keep_owners:
                self._pool.disown()
            return self._ledger.recover()

    # -- looking back

    def audit(self) -> dict[str, object]:
        """Counts by status and in ``"total"``, and two lists that must be empty.

        ``"consumed_twice"`` lists trajectories with two consumptions, ``"inconsistent"`` those whose status, consumption or
        token count contradict each other.
        """
        return self._ledger.audit()

    def consumed(self, ids: Sequence[str] | None = None) -> list[ConsumedTrajectory]:
        """The trajectories that were trained on and not trimmed, in the order of the versions; with `ids`, only those."""
        return self._ledger.consumed(ids)

    def consumed_tokens(self) -> list[int]:
        """Number of generated tokens of each trajectory that was trained on, trimmed or not, in no order."""
        return self._ledger.consumed_tokens()

    def stats(self) -> StoreStats:
        """Counts since the store was opened."""
        with self._database.locked():
            return dataclasses.replace(StoreStats(), **self._counts)

    def export_jsonl(self, path: Path | str) -> int:
        """`export` to a file whose name ends with ``.jsonl``."""
        return self.export(path)

    def export(self, path: Path | str) -> int:
        """Write the trajectories that were trained on to a file, which appears complete or not at all. An archive is completed.

        If its name ends with ``.jsonl``, it has JSON lines, otherwise packed records; `read_trained` reads both.
        Each row has trajectory, group, prompt, tokens, versions (one for each token), logprobs, observations (where each
        begins and ends among the tokens), contexts (where those begin that are fresh, see `Segment`), generated (number of the
        other tokens), reward, finish, oldest_version, completed_version, consumed_version and metadata. In the archive of
        `trim` the rows stay as they are, and those that it lacks follow. Any other file has what was not trimmed.

        Returns:
            Number of rows written after those of the archive.
        """
        target = Path(path)
        with self._trimming:  # all the while: a `trim` would forget rows that are yet to be written
            some, rows = self._ledger.archived.nbytes > 0, self.consumed()
            if some and target.exists():  # it may be far larger than what it lacks
                with target.open("a+b", buffering=0) as file:
                    if archived := self._archived_in(file):
                        file.truncate(self._write(file, target, rows, archived))
                        return len(rows)
            unfinished = target.with_name(f"{target.name}.{os.getpid()}.unfinished")
            try:
                with unfinished.open("w+b", buffering=0) as file:
                    made = _known(file, self._write(file, target, rows, 0))
                unfinished.replace(target)
            finally:
                unfinished.unlink(missing_ok=True)
            if rows and not some:  # it may become the archive
                self._ledger.note(made._replace(nbytes=0))
        return len(rows)

    def _line(self, row: ConsumedTrajectory) -> bytes:
        return json.dumps(dataclasses.asdict(row) | self._ledger.content(row.trajectory)).encode() + b"\n"

    def close(self) -> None:
        """Close the file. Every later call raises `StoreClosedError`; a second close does nothing.

        It waits for an `export`, and for the slice of a `trim` that is under way: a thread that went on writing would take
        from the archive what the next one to open the store has put there.
        """
        self._closing = True
        with self._trimming:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
