"""Forwarding along the chain: one thread of a relay that keeps the next hop supplied.

    consumes     versions that are complete here or arriving at this moment, newest first
    waits for    the next chunk from upstream; the next hop's slot; `set_next`
    unblocked by every change of the slot table, `set_next`, `close`

Chunks go on as they arrive, so a chain of any length takes hardly longer than one hop (Laminar, Appendix C). A next hop
that fails costs this relay nothing: the error is kept for `status`, and delivery is tried again after `set_next`, and at
growing intervals without it.
"""

from __future__ import annotations

import sys

from tailrace.paramserver.errors import (
    ParamServerError,
    RelayTimeout,
    RelayUnreachable,
    VersionRetired,
    VersionSuperseded,
)
from tailrace.paramserver.machine.protocol import Machine, Thread
from tailrace.paramserver.relays.slots import Publication, Slot, SlotState, SlotTable
from tailrace.paramserver.wire.authentication import HANDSHAKE_S, connect
from tailrace.paramserver.wire.channel import Channel
from tailrace.paramserver.wire.transfer import send_version

_FIRST_RETRY_S, _LAST_RETRY_S = 0.25, 15.0


class Forwarder:
    """Delivers every version of a slot table to the next relay of the chain.

    Args:
        table: where versions appear.
        name: of this relay, for messages.
        token: shared secret.
        stall_s: how long the next hop may make no progress.
        slot_timeout_s: how long the next hop may take to free a slot.
        machine: where it runs.
    """

    def __init__(
        self, table: SlotTable, name: str, token: str, *, stall_s: float, slot_timeout_s: float, machine: Machine
    ) -> None:
        self._table, self._name, self._token = table, name, token
        self._stall_s, self._slot_timeout_s, self._machine = stall_s, slot_timeout_s, machine
        self._next: str | None = None
        self._epoch = 0  # of the chain: what was begun for an earlier one stops
        self._closed = False
        self._delivered: set[tuple[int, int]] = set()
        self._retry_at, self._retry_s = 0.0, _FIRST_RETRY_S
        self._error: str | None = None
        self._channel: Channel | None = None
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = self._machine.spawn(self._run, f"{self._name} forwarder")

    def set_next(self, address: str | None) -> None:
        """Deliver to this relay from now on, first of all whatever it lacks; None ends the chain here."""
        with self._table.changed:
            self._next, self._epoch = address, self._epoch + 1
            self._delivered.clear()
            self._error, self._retry_at, self._retry_s = None, 0.0, _FIRST_RETRY_S
            if self._channel is not None:
                self._channel.shutdown()
            self._table.changed.notify_all()

    def status(self) -> dict[str, object]:
        """The next hop and the last error on the way to it."""
        with self._table.changed:
            return {"next": self._next, "forward_error": self._error}

    def close(self) -> None:
        """Stop, and wait for the thread."""
        with self._table.changed:
            self._closed = True
            if self._channel is not None:
                self._channel.shutdown()
            self._table.changed.notify_all()
        if self._thread is not None:
            self._thread.join(2 * HANDSHAKE_S)

    def _run(self) -> None:
        while True:
            with self._table.changed:
                address, epoch, work = self._next, self._epoch, self._work()
                if self._closed:
                    self._drop_channel()
                    return
                if address is None or work is None:
                    self._table.changed.wait(self._pause())
                    continue
            self._deliver(address, epoch, work)

    def _pause(self) -> float | None:
        remaining = self._retry_at - self._machine.now()
        return remaining if self._next is not None and remaining > 0 else None

    def _work(self) -> Publication | None:
        """The newest version that the next hop is not known to have, unless it is too early to try again."""
        if self._machine.now() < self._retry_at:
            return None
        waiting = [
            publication
            for slot in self._table.slots
            if (publication := slot.publication) is not None
            and slot.state in (SlotState.RECEIVING, SlotState.COMPLETE)
            and not publication.failed
            and publication.manifest.key not in self._delivered
        ]
        return max(waiting, key=lambda publication: publication.manifest.stamp, default=None)

    def _deliver(self, address: str, epoch: int, publication: Publication) -> None:
        leased = self._table.lease_for_forwarding(publication, f"forwarding to {address}")
        if leased is None:
            return
        try:
            channel = self._open(address, epoch)
            self._send(channel, leased[0], publication, epoch)
        except VersionRetired:  # the next hop holds newer ones
            self._settle(epoch, publication, None)
        except VersionSuperseded:  # the next hop has no slot, and a writer here needs ours
            self._drop_channel()
        except (ParamServerError, OSError) as error:
            self._drop_channel()
            self._settle(epoch, publication, f"version {publication.manifest.version} to {address}: {error}")
        else:
            self._settle(epoch, publication, None)
        finally:
            self._table.release(*leased)

    def _send(self, channel: Channel, slot: Slot, publication: Publication, epoch: int) -> None:
        def chunk_checksum(index: int) -> int:
            with self._table.changed:
                while len(publication.checksums) <= index:
                    if publication.failed:
                        raise RelayUnreachable("the version stopped arriving from upstream")
                    self._check_current(epoch)
                    if not self._table.changed.wait(2 * self._stall_s):
                        raise RelayTimeout(f"upstream sent nothing for {2 * self._stall_s} s")
                return publication.checksums[index]

        send_version(
            channel,
            publication.manifest,
            slot.memory,
            chunk_checksum,
            go_timeout_s=self._slot_timeout_s + self._stall_s,
            give_up=lambda: self._table.wanted(slot) or self._closed or publication.failed,
        )

    def _check_current(self, epoch: int) -> None:
        if self._closed or epoch != self._epoch:
            raise RelayUnreachable("the chain was rebuilt")

    def _open(self, address: str, epoch: int) -> Channel:
        if self._channel is not None and not self._channel.readable(0):  # readable between requests: the peer closed
            return self._channel
        self._drop_channel()
        channel, _ = connect(self._machine, address, token=self._token, timeout_s=HANDSHAKE_S, stall_s=self._stall_s)
        with self._table.changed:
            self._channel = channel
            self._delivered.clear()  # it may be another relay at the same address
            self._check_current(epoch)
        return channel

    def _settle(self, epoch: int, publication: Publication, error: str | None) -> None:
        with self._table.changed:
            if epoch != self._epoch or self._closed:
                return
            if error is None:
                self._delivered.add(publication.manifest.key)
                self._error, self._retry_s = None, _FIRST_RETRY_S
                return
            if publication.failed:  # upstream's fault; a complete copy will come as another publication
                return
            self._error = error
            self._retry_at = self._machine.now() + self._retry_s
            self._retry_s = min(_LAST_RETRY_S, 2 * self._retry_s)
        sys.stderr.write(f"tailrace relay {self._name}: cannot forward {error}\n")

    def _drop_channel(self) -> None:
        with self._table.changed:
            if self._channel is not None:
                self._channel.close()
                self._channel = None
