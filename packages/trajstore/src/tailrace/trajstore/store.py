"""The data module of asynchronous RL (Laminar section 3.1): partial-response pool and experience buffer in one SQLite file.

    begin ──► partial ──append(finish)──► complete ──set_reward, consume──► consumed
                 │                            ▲  │                             │
                 └── fail, discard ───────────┼──┴──► failed, discarded        │
                                              └────────── rollback ────────────┘

Tokens come in from replicas while they are generated, so the death of a replica loses no more than what was on its way. What a
call has acknowledged survives SIGKILL of this process, and a call whose answer was lost may be repeated. One process writes;
its threads may call at the same time.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tailrace.contracts import Experience
from tailrace.trajstore.database import Database, Synchronous
from tailrace.trajstore.ledger import Ledger
from tailrace.trajstore.packing import Precision
from tailrace.trajstore.partials import PartialResponsePool
from tailrace.trajstore.records import (
    Assignment,
    ConsumedTrajectory,
    PartialDelta,
    PartialResponse,
    Recovery,
    Resume,
    Status,
    StoreStats,
)


class TrajectoryStore:
    """Trajectories from their first token until they were trained on.

    Args:
        path: the database file, made if it is missing; beside it lies a lock file. None keeps everything in memory.
        mixed_versions: let several weight versions write one trajectory (partial rollout). Otherwise each trajectory is of
            one version (Laminar sections 2.4 and 9), and tokens of another are dropped when it is begun again.
        synchronous: ``"normal"`` survives the death of the process, ``"full"`` also that of the machine; ``"off"`` leaves
            flushing to the system.
        logprobs: ``"float64"`` keeps log-probabilities exactly, ``"float32"`` takes half of the space.
        keep_tokens: keep the tokens of consumed trajectories; otherwise `trim` drops them.
        initial_version: the trainer's version before anything was consumed.
        open_timeout_s: how long to wait for another process that has the file open.

    Raises:
        StoreBusyError: another process still has the file open.
        StoreFormatError: the file is something else.
    """

    def __init__(
        self,
        path: Path | str | None = None,
        *,
        mixed_versions: bool = False,
        synchronous: Synchronous = "normal",
        logprobs: Precision = "float64",
        keep_tokens: bool = True,
        initial_version: int = 0,
        open_timeout_s: float = 10.0,
    ) -> None:
        self._database = Database(
            None if path is None else Path(path), synchronous=synchronous, open_timeout_s=open_timeout_s
        )
        self._keep_tokens = keep_tokens
        self._counts: Counter[str] = Counter()
        self._pool = PartialResponsePool(
            self._database, mixed_versions=mixed_versions, precision=logprobs, count=self._count
        )
        self._ledger = Ledger(self._database, initial_version=initial_version)

    def _count(self, name: str, amount: int) -> None:
        self._counts[name] += amount

    # -- the partial-response pool

    def begin(self, owner: str, version: int, items: Sequence[Assignment]) -> list[Resume]:
        """Register trajectories, or take them over, for an owner that generates them with a version.

        From here on the deltas of any earlier owner are refused. A trajectory that had failed or been discarded starts
        again from nothing; one that is finished is handed back as such and left alone.

        Args:
            owner: unique for each life of a replica, for example ``"replica-3#2"``: a name that is used again after a
                restart would not be fenced off from the life before.
            version: the weight version that the owner serves.

        Returns:
            What exists of each, in order. With `mixed_versions` off, kept tokens are all of `version`.

        Raises:
            TrajectoryStateError: an id exists with another prompt or group.
            TrajectoryDataError: an id is there twice, or a prompt or metadata cannot be stored.
        """
        with self._database.locked():
            return self._pool.begin(owner, version, items)

    def append(self, owner: str, deltas: Sequence[PartialDelta], *, trainer_version: int | None = None) -> list[str]:
        """Store new tokens: one transaction for the whole call.

        A delta is refused if its trajectory is unknown, finished or owned by somebody else, if it leaves a gap or overlaps, or
        if its version is not the one of the trajectory. A delta that is stored already is accepted and changes nothing.

        Args:
            trainer_version: the trainer's version now, noted on what finishes; by default the newest version that
                anything was consumed for.

        Returns:
            Trajectories of which something was refused: the owner stops generating them.

        Raises:
            TrajectoryDataError: a token or log-probability cannot be stored. Nothing of the call is then stored.
        """
        with self._database.locked():
            now = self._ledger.trainer_version if trainer_version is None else trainer_version
            return self._pool.append(owner, deltas, now)

    def partials(self) -> list[PartialResponse]:
        """The trajectories that are being generated, for a look at how long they have become."""
        return self._pool.partials()

    # -- the experience buffer

    def experiences(self, ids: Sequence[str]) -> list[Experience]:
        """Finished trajectories with their data, in order. Their metadata also names the purpose.

        Raises:
            UnknownTrajectoryError: one was never begun.
            TrajectoryStateError: one is not finished, has failed, was discarded, or its tokens were trimmed.
        """
        return self._ledger.experiences(ids)

    def finished(self, ids: Sequence[str]) -> list[Experience]:
        """Those of the trajectories that are complete and not consumed, in order; the others are left out."""
        with self._database.locked():
            complete = [name for name, status in self._ledger.statuses(ids).items() if status is Status.COMPLETE]
            return self._ledger.experiences(complete)

    def statuses(self, ids: Sequence[str]) -> dict[str, Status]:
        """The status of each trajectory that the store knows; the others are left out."""
        return self._ledger.statuses(ids)

    def set_reward(self, trajectory: str, reward: float) -> bool:
        """Give a finished trajectory its reward; a second one replaces the first.

        Returns:
            False if the trajectory has failed or was discarded meanwhile: the reward came too late.

        Raises:
            UnknownTrajectoryError: it was never begun.
            TrajectoryStateError: it is not finished, or consumed already.
            TrajectoryDataError: the reward is not a finite number.
        """
        return self._ledger.set_reward(trajectory, reward)

    def fail(self, trajectory: str, reason: str) -> None:
        """Give a trajectory up because of an infrastructure failure. One that has failed or was discarded stays as it is.

        Raises:
            UnknownTrajectoryError: it was never begun.
            TrajectoryStateError: it was trained on.
        """
        with self._database.locked():
            self._ledger.fail(trajectory, reason)
            self._pool.forget([trajectory])

    def discard(self, ids: Sequence[str], reason: str) -> list[str]:
        """Drop trajectories on purpose, wherever they are.

        Returns:
            Those that were dropped by this call; ids that are unknown or were discarded before are passed over.

        Raises:
            TrajectoryStateError: one was trained on. None is then dropped.
        """
        with self._database.locked():
            dropped = self._ledger.discard(ids, reason)
            self._pool.forget(dropped)
            return dropped

    def consume(self, ids: Sequence[str], version: int) -> None:
        """Mark a batch as trained on: all of it or, on any error, none.

        The very batch that was consumed for the version already is accepted and changes nothing, so a caller that lost the
        answer may simply repeat the call.

        Args:
            version: the version that the trainer makes with it.

        Raises:
            AlreadyConsumedError: a trajectory was consumed before, or is in the batch twice.
            TrajectoryStateError: a trajectory is not complete, has no reward, or is not for training.
            UnknownTrajectoryError: a trajectory was never begun.
        """
        with self._database.locked():
            if self._ledger.consume(ids, version):
                self._count("consumed", len(ids))

    def rollback(self, durable_version: int) -> list[str]:
        """Undo every consumption for a version after the durable one, whose update was lost with the trainer.

        Returns:
            The trajectories that may be consumed again.

        Raises:
            TrajectoryStateError: the tokens of one were trimmed: a later version was durable. Nothing is then undone.
        """
        with self._database.locked():
            undone = self._ledger.rollback(durable_version)
            self._count("rolled_back", len(undone))
            return undone

    def trim(self, durable_version: int) -> int:
        """Drop the tokens of what is consumed for a durable version, has failed or was discarded; with `keep_tokens`, none.

        Returns:
            How many trajectories lost their tokens. Everything else about them stays.
        """
        return 0 if self._keep_tokens else self._ledger.trim(durable_version)

    def recover(self, *, keep_owners: bool = False) -> Recovery:
        """Take stock after a crash, and take every unfinished trajectory from its owner.

        Replicas that survived the crash can write nothing more until they begin their trajectories again.

        Args:
            keep_owners: only the process of this store had died: its writers live, and go on where they were.
        """
        with self._database.locked():
            if not keep_owners:
                self._pool.disown()
            return self._ledger.recover()

    # -- looking back

    def audit(self) -> dict[str, object]:
        """Counts by status and in ``"total"``, and what must be empty lists.

        ``"consumed_twice"`` names trajectories with two consumptions, ``"inconsistent"`` those whose status, consumption or
        token count contradict each other.
        """
        return self._ledger.audit()

    def consumed(self, ids: Sequence[str] | None = None) -> list[ConsumedTrajectory]:
        """What was trained on, in the order of the versions; or of `ids`, those that were trained on."""
        return self._ledger.consumed(ids)

    def stats(self) -> StoreStats:
        """Counts since the store was opened."""
        with self._database.locked():
            return dataclasses.replace(StoreStats(), **self._counts)

    def export_jsonl(self, path: Path | str) -> int:
        """Write what was trained on to a JSON Lines file, which appears complete or not at all.

        Each line has trajectory, group, prompt, tokens, versions (one for each token), logprobs, reward, finish,
        oldest_version, completed_version, consumed_version and metadata. Trimmed trajectories have null for their tokens.

        Returns:
            Lines written.
        """
        target = Path(path)
        unfinished = target.with_name(f"{target.name}.{os.getpid()}.unfinished")
        rows = self.consumed()
        try:
            with unfinished.open("w", encoding="utf-8") as file:
                for row in rows:
                    line = dataclasses.asdict(row) | self._ledger.content(row.trajectory)
                    file.write(json.dumps(line) + "\n")
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
        return len(rows)

    def close(self) -> None:
        """Close the file. Every later call raises `StoreClosedError`, a second close does nothing."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
