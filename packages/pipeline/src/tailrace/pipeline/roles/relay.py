"""The relay role: one relay process per machine, holding weight versions in shared memory (Laminar, section 4)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tailrace.contracts import Activity, Command, Event
from tailrace.faulttol import FaultKind, strike
from tailrace.paramserver import (
    ProtocolError,
    RelayNameTaken,
    RelayProcess,
    RelayReader,
    RelayTimeout,
    RelayUnreachable,
)
from tailrace.pipeline.roles.calls import RelayCalls
from tailrace.pipeline.roles.peer_memory import KEPT, machine
from tailrace.pipeline.roles.transfer import WeightTransfer
from tailrace.runtime.errors import RoleError
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.executor.seam import MemberStart

_LOOK_S = 0.05
_PROBE_S = 2.0


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Settings of the relays.

    Args:
        transfer: the transport and codec, and the address to listen on.
        slots: versions that each holds, at least 2.
        peers: whether replicas pull from each other too: it then serves one of them at a time.
    """

    transfer: WeightTransfer = field(default_factory=WeightTransfer)
    slots: int = 2
    peers: bool = False


class RelayRole:
    """Starts and watches the relay process of a machine. Its shared-memory segments bear the member's name."""

    def __init__(self, settings: RelaySettings, start: MemberStart) -> None:
        transfer, name, token = settings.transfer, start.name, start.token
        sending = transfer.sending
        # If a relay of this name still lives, it is this member's last incarnation; replace it.
        self._process = RelayProcess.start(
            name,
            host=transfer.address,
            token=token,
            replace=True,
            slots=settings.slots,
            pullers=1 if settings.peers else None,
            transports=sending.transports,
            codecs=sending.codecs,
            always_encode=sending.always_encode,
        )
        self._probe = RelayReader(self._process.address, token=token, same_host=False, stall_s=_PROBE_S)
        self._member, self._slots = start.id, settings.slots
        self._held = (0, 0)
        self._closed = threading.Event()
        self._starting = threading.Lock()
        self._memory: RelayProcess | None = None  # of checkpoints, once it is asked for
        self._start = partial(
            RelayProcess.start, f"{name}-checkpoints", host=transfer.address, token=token, replace=True
        )

    def ready(self) -> Ready:
        """The relay's address."""
        return Ready(address=self._process.address)

    def memory(self, but: str | None) -> str:
        """Address of a process that holds the newest checkpoints in this machine's memory; it is started when it is asked for.

        Args:
            but: a machine, where there is none: the address is empty there. None: any will do.
        """
        if machine() == but:
            return ""
        with self._starting:
            if self._memory is None or not self._memory.alive():
                self._memory = self._start(slots=KEPT)
            return self._memory.address

    def process(self) -> int:
        """Process id of the relay itself."""
        return self._process.pid

    def submit(self, commands: Sequence[Command]) -> None:
        """Relays take no commands.
        Raises:
            RoleError: there is one.
        """
        if commands:
            raise RoleError(f"the relay got {type(commands[0]).__name__} {commands[0].seq}, expected nothing")

    def events(self, timeout_s: float) -> list[Event]:
        """What it holds, if that has changed by the end of `timeout_s` seconds.

        It returns only once the relay answers, so never while the relay is suspended.

        Raises:
            RoleError: the relay's process is gone.
        """
        deadline = time.monotonic() + timeout_s
        while not self._closed.is_set():
            if not self._process.alive():
                self._clear()
                raise RoleError(f"the relay's process {self._process.pid} is gone")
            left_s = deadline - time.monotonic()
            if left_s <= 0 and (held := self._memory_held()) is not None:
                if held == self._held:
                    break
                self._held = held
                copies, nbytes = held
                says = f"{copies} of at most {self._slots + 1} copies of weights, {nbytes / 1e6:,.1f} MB"
                return [Activity("relay", self._member, says, copies)]
            self._closed.wait(left_s if left_s > 0 else _LOOK_S)
        return []

    def adopt(self) -> None:
        """Prepare for another controller; the relay keeps its versions."""

    def strike(self, kind: FaultKind) -> bool:
        """Inject a fault into the relay's own process."""
        return kind in (FaultKind.KILL, FaultKind.HANG) and strike(self._process.pid, kind)

    def close(self) -> None:
        """End the process and free its shared memory."""
        self._closed.set()
        if self._process.alive():
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGCONT)  # a suspended process could not clean up
        self._process.close()
        self._clear()
        with self._starting:
            if self._memory is not None:
                self._memory.close()

    def _clear(self) -> None:
        """Free the shared memory of a relay that was killed."""
        with suppress(RelayNameTaken):  # its next incarnation runs already
            RelayProcess.clear(self._process.name)

    def _memory_held(self) -> tuple[int, int] | None:
        """Copies and bytes; None while the relay does not answer."""
        try:
            return self._probe.memory()
        except (RelayTimeout, RelayUnreachable, ProtocolError):
            return None


if TYPE_CHECKING:
    _: type[RelayCalls] = RelayRole  # mypy checks it here
