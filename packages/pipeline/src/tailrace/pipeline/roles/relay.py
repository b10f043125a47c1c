"""The relay role: one relay process per machine, holding weight versions in shared memory (Laminar, section 4)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from tailrace.contracts import Command, Event
from tailrace.faulttol import FaultKind, strike
from tailrace.paramserver import (
    ProtocolError,
    RelayNameTaken,
    RelayProcess,
    RelayReader,
    RelayTimeout,
    RelayUnreachable,
)
from tailrace.pipeline.errors import RoleError

_LOOK_S = 0.05
_PROBE_S = 2.0


class RelayRole:
    """Starts and watches the relay process of a machine.

    Args:
        name: unique on the machine; names the shared-memory segments.
        token: shared secret of the run's peers.
        host: address to listen on; ``"node"`` is this machine's address in the Ray cluster.
    """

    def __init__(self, *, name: str, token: str, host: str = "127.0.0.1") -> None:
        if host == "node":
            import ray

            host = ray.util.get_node_ip_address()
        # A relay of the name that still lives is this member's last incarnation.
        self._process = RelayProcess.start(name, host=host, token=token, replace=True)
        self._probe = RelayReader(self._process.address, token=token, same_host=False, stall_s=_PROBE_S)
        self._closed = threading.Event()

    def ready(self) -> dict[str, str]:
        """Where the relay listens."""
        return {"address": self._process.address}

    def process(self) -> int:
        """The relay's own process."""
        return self._process.pid

    def submit(self, commands: Sequence[Command]) -> None:
        """Nothing is asked of a relay."""
        if commands:
            raise RoleError(f"the relay got {type(commands[0]).__name__} {commands[0].seq}, expected nothing")

    def events(self, timeout_s: float) -> list[Event]:
        """Returns after `timeout_s` seconds, and only if the relay answers then. While it is suspended, this does not return.

        Raises:
            RoleError: its process is gone.
        """
        deadline = time.monotonic() + timeout_s
        while not self._closed.is_set():
            if not self._process.alive():
                self._clear()
                raise RoleError(f"the relay's process {self._process.pid} is gone")
            left_s = deadline - time.monotonic()
            if left_s <= 0 and self._answers():
                break
            self._closed.wait(min(_LOOK_S, left_s) if left_s > 0 else _LOOK_S)
        return []

    def adopt(self) -> None:
        """Another controller takes over; the relay keeps what it holds."""

    def strike(self, kind: FaultKind) -> bool:
        """A scripted fault hits the relay's own process."""
        return kind in (FaultKind.KILL, FaultKind.HANG) and strike(self._process.pid, kind)

    def close(self) -> None:
        """End the process and free its shared memory."""
        self._closed.set()
        if self._process.alive():
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGCONT)  # one that is suspended could not tidy up
        self._process.close()
        self._clear()

    def _clear(self) -> None:
        """What a relay that was killed left."""
        with suppress(RelayNameTaken):  # its next incarnation is there already
            RelayProcess.clear(self._process.name)

    def _answers(self) -> bool:
        try:
            self._probe.versions()
        except (RelayTimeout, RelayUnreachable, ProtocolError):
            return False
        return True
