"""What becomes of a checkpoint that the trainer has begun, and where one is found again.

begun ──► durable on disk ──► in the memory of another machine too, if that is asked for ──► `Durable`, older ones go
wanted ──► the disk's copy, if it is whole ──► else that of the other machine, put back on disk first

While bytes are written, `Saving` says so now and then. Weights alone are on disk only: nobody goes back to them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from tailrace.contracts import Checkpoint, Durable, Saving, TailraceError
from tailrace.pipeline.roles.calls import DataCalls
from tailrace.pipeline.roles.peer_memory import PeerMemory
from tailrace.runtime.errors import CheckpointUnusableError, DeadlineError
from tailrace.runtime.hosts.ray_machines import own_machine
from tailrace.runtime.role_worker import RoleWorker
from tailrace.trainer.checkpoint_files import WriteProgress, read_manifest

_POLL_S = 0.1
TOLD_S = 10.0
"""Seconds between two `Saving` events of a checkpoint that takes long."""


class CheckpointRetention:
    """Checkpoints of a trainer.

    Args:
        root: directory with one checkpoint per version.
        data: the data role.
        worker: is told of failures, and says `Durable`.
        save_timeout_s: seconds without a byte of it written after which a checkpoint has failed; deadline of a copy to `peers`.
        peers: the second failure domain; None: the disk is the only one.
        first: whether this is the first rank, which alone copies to and from `peers`.
    """

    def __init__(
        self,
        root: Path,
        data: DataCalls,
        worker: RoleWorker,
        *,
        save_timeout_s: float,
        peers: PeerMemory | None = None,
        first: bool = True,
    ) -> None:
        self._root, self._data, self._worker = root, data, worker
        self._save_timeout_s = save_timeout_s
        self._peers, self._first = peers, first
        self._threads: list[threading.Thread] = []

    def directory(self, version: int) -> Path:
        """Where the checkpoint of a version is."""
        return self._root / str(version)

    def follow(self, command: Checkpoint, saved: Future[Any]) -> None:
        """Say when a checkpoint is durable; returns at once."""
        thread = threading.Thread(target=self._await, args=(command, saved), daemon=True)
        thread.start()
        self._threads = [other for other in self._threads if other.is_alive()] + [thread]

    def restore(self, version: int, load: Callable[[str], int]) -> None:
        """Load the checkpoint of a version.

        Raises:
            CheckpointUnusableError: it is missing, damaged, or of another model.
        """
        directory = self.directory(version)
        try:
            found = self._load(directory, version, load)
        except (TailraceError, OSError, LookupError, TypeError, ValueError) as error:
            raise CheckpointUnusableError(f"the checkpoint of version {version} cannot be used: {error}") from error
        if found != version:
            raise CheckpointUnusableError(f"found version {found} in {directory}, expected version {version}")

    def _load(self, directory: Path, version: int, load: Callable[[str], int]) -> int:
        """Load it. If that fails, which it does on all ranks or none, the first one fetches the copy of another machine.

        All load again then: a load begins with a barrier, so none reads before the copy is there.
        """
        try:
            return load(str(directory))
        except TailraceError:
            if self._peers is None:
                raise
        if self._first:
            self._peers.fetch(directory, version)
        return load(str(directory))

    def undo(self, version: int) -> None:
        """Remove the checkpoints of later versions, which a fall-back has undone: their numbers may name other weights soon."""
        for path in self._root.iterdir() if self._first else ():
            if path.name.isdigit() and int(path.name) > version:
                shutil.rmtree(path)

    def close(self) -> None:
        """Wait for checkpoints under way."""
        for thread in self._threads:
            thread.join(self._save_timeout_s)

    def _await(self, command: Checkpoint, saved: Future[Any]) -> None:
        version = command.version
        try:
            self._written(command, saved)
            nbytes = sum(int(file["bytes"]) for file in read_manifest(self.directory(version))["files"].values())
            if self._peers is not None and command.full:
                self._worker.put(Saving(version, answers=command.seq, nbytes=nbytes))
                self._peers.keep(self.directory(version), version, self._save_timeout_s)
        except Exception as error:
            self._worker.fail(error)
        else:
            self._worker.put(Durable(version, answers=command.seq, full=command.full, nbytes=nbytes))
            self._remove_before(version, command.keep)
            self._trim(min([version, *command.keep]))

    def _written(self, command: Checkpoint, saved: Future[Any]) -> None:
        """Wait until a checkpoint is durable, as long as bytes are written, and say that they are.

        Raises:
            DeadlineError: none was for too long.
        """
        progress, told_s, told = WriteProgress(self._root, self._save_timeout_s), time.monotonic(), -1
        every_s = min(TOLD_S, self._save_timeout_s / 3)  # the executor's deadline is as long
        while True:
            if wait([saved], _POLL_S).done:
                saved.result()
                return
            if progress.passed():
                raise DeadlineError(
                    f"waited {self._save_timeout_s:.0f} s for more of the checkpoint of version {command.version} to be "
                    f"written; {progress.nbytes:,} bytes are, in {self._root}"
                )
            if time.monotonic() - told_s >= every_s and progress.nbytes != told:
                told_s, told = time.monotonic(), progress.nbytes
                self._worker.put(Saving(command.version, answers=command.seq, nbytes=progress.nbytes))

    def _remove_before(self, version: int, keep: Collection[int]) -> None:
        """Remove checkpoints of earlier versions that are not kept, and what a killed trainer left of unfinished ones.

        They are written one after the other, so none of an earlier version is under way; and no version has its number again.
        """
        for path in self._root.iterdir():
            number, _, partial = path.name.removeprefix(".").partition(".")
            if number.isdigit() and int(number) < version and (partial or int(number) not in keep):
                shutil.rmtree(path, ignore_errors=True)

    def _trim(self, oldest: int) -> None:
        """No checkpoint before this version is kept."""
        try:
            while self._data.trim(oldest):  # each call has a deadline, and a store may have days of a run to forget
                pass
        except Exception as error:
            self._worker.fail(error)


# Where the trainer's checkpoints lie when every machine has a directory of its own: on the disk of the trainer's machine.
#
# RUN/checkpoints ──link──► RUN/machines/0/checkpoints      machine 0 is gone with its disk: the link leads nowhere
#                 ──link──► RUN/machines/1/checkpoints      the trainer starts on machine 1


def on_own_disk(checkpoints: Path) -> None:
    """See that the directory of checkpoints lies on a disk that is there: else on that of this process's machine.

    What lies on another machine's disk stays there while that machine lives. Several ranks may call it at once.

    Args:
        checkpoints: where all others look for checkpoints.
    """
    machine = own_machine()
    if machine is None:
        return
    own = machine / checkpoints.name
    own.mkdir(parents=True, exist_ok=True)
    if not checkpoints.is_symlink():
        with suppress(OSError):  # another rank was first, or a run that had no machines has filled it
            checkpoints.rmdir()
    if checkpoints.exists():
        return
    link = checkpoints.with_name(f".{checkpoints.name}.{secrets.token_hex(4)}")
    link.symlink_to(os.path.relpath(own, checkpoints.parent), target_is_directory=True)
    link.replace(checkpoints)
