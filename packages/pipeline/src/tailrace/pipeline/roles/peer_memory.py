"""Checkpoints in the memory of another machine: a second failure domain beside the trainer's own disk.

    keep    files of a complete checkpoint ──Publisher──► a relay process on another machine, which holds the newest two
    fetch   that process ──RelayReader──► files under a hidden name, checked against the checkpoint's own checksums ──► renamed

Files travel as weights do: both ends prove that they hold the run's token, chunks are checksummed, and nothing is unpickled.
"""

from __future__ import annotations

import logging
import mmap
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import Any

from tailrace.paramserver import ParamServerError, Publisher, RelayReader
from tailrace.pipeline.roles.calls import RELAY_DOOR
from tailrace.runtime.errors import DeadlineError, RoleError
from tailrace.runtime.executor.seam import Caller, MemberDeadError
from tailrace.trainer.checkpoint_files import partial_directory, put_in_place, read_manifest, sync, verify

_log = logging.getLogger(__name__)
_ASK_S = 20.0
_ASK_FIRST_S = 2.0  # whoever lives answers at once; one that is being replaced may not have the copy
_RETRY_S = 0.5
_LEASE_S = 1.0
KEPT = 2


def machine() -> str:
    """Ray's id of this machine; empty in a process that is no actor."""
    ray = sys.modules.get("ray")
    return str(ray.get_runtime_context().get_node_id()) if ray is not None and ray.is_initialized() else ""


def node_address() -> str:
    """This machine's address in Ray's cluster; empty in a process that is no actor."""
    ray = sys.modules.get("ray")
    return str(ray.util.get_node_ip_address()) if ray is not None and ray.is_initialized() else ""


class PeerMemory:
    """The memory of machines on which relays stand, as the trainer's first rank uses it.

    Args:
        relays: the relays, each of which starts a process that holds checkpoints when it is first asked for it.
        token: shared secret of the run's peers.
        here: this machine; its relays are no second failure domain.
    """

    def __init__(self, relays: Sequence[Caller], token: str, here: str) -> None:
        self._relays, self._token, self._here = list(relays), token, here
        self._sending = Lock()  # one after the other: a process does not take a version behind a newer one

    def keep(self, directory: Path, version: int, timeout_s: float) -> None:
        """Copy a complete checkpoint to the first other machine that takes it.

        Raises:
            DeadlineError: none did in time.
        """
        deadline, why = time.monotonic() + timeout_s, "no other machine answers"
        while True:
            for address in self._memories(self._here, _ASK_S):
                try:
                    with self._sending:
                        self._send(address, directory, version, deadline - time.monotonic())
                except ParamServerError as error:
                    why = str(error)
                else:
                    return
            if time.monotonic() + _RETRY_S > deadline:
                raise DeadlineError(
                    f"waited {timeout_s:.0f} s for another machine to hold the checkpoint of version {version}: {why}"
                )
            time.sleep(_RETRY_S)

    def fetch(self, directory: Path, version: int) -> None:
        """Put a checkpoint back where it was on disk.

        The machine that holds it may be this one: a trainer whose machine is gone may have come to it.

        Raises:
            RoleError: no machine holds it, whole.
        """
        why = "no machine answers"
        for ask_s in (_ASK_FIRST_S, _ASK_S):
            for address in self._memories(None, ask_s):
                try:
                    self._receive(address, directory, version)
                except (ParamServerError, OSError, ValueError) as error:
                    why = str(error)
                else:
                    return
        raise RoleError(f"found no copy of checkpoint {version} in the memory of any machine: {why}")

    def _memories(self, but: str | None, ask_s: float) -> Iterator[str]:
        """Addresses of the processes that hold checkpoints, but for those of one machine."""
        for relay in self._relays:
            try:
                address = RELAY_DOOR.open(relay, ask_s).memory(but)
            except (MemberDeadError, DeadlineError) as error:
                _log.info("no memory for checkpoints there: %s", error)
                continue
            if address:
                yield address

    def _send(self, address: str, directory: Path, version: int, timeout_s: float) -> None:
        with ExitStack() as opened:
            files: list[tuple[str, Any]] = []
            for path in sorted(directory.iterdir()):
                if size := path.stat().st_size:
                    file = opened.enter_context(path.open("rb"))
                    files.append((path.name, memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))))
            publisher = opened.enter_context(Publisher(address, token=self._token, buffers=1, borrow_bytes=None))
            publisher.publish(version, files)
            publisher.wait(version, max(0.0, timeout_s))

    def _receive(self, address: str, directory: Path, version: int) -> None:
        partial = partial_directory(directory)
        partial.mkdir(parents=True, exist_ok=True)
        with (
            RelayReader(address, token=self._token) as reader,
            reader.lease(version, timeout_s=_LEASE_S) as held,
        ):
            for name, tensor in held.raw().items():
                path = partial / Path(name).name
                path.write_bytes(tensor.data)
                sync(path)
        for name, about in read_manifest(partial)["files"].items():
            if not about["bytes"]:
                (partial / name).touch()  # there was nothing of it to send
        verify(partial)
        put_in_place(partial, directory)
