"""Forwarding along the tree: one thread of a relay that keeps one next hop supplied.

    consumes     versions that are whole here or arriving at this moment, newest first; orders to retire
    waits for    the next chunk from upstream; the next hop's slot; `retry`
    unblocked by every change of the slot table, `retry`, `close`

Chunks go on as they arrive, so a chain of any length takes hardly longer than one hop (Laminar, Appendix C). A next hop
that fails costs this relay nothing: the error is kept for `status`, and delivery is tried again after `retry`, and at
growing intervals without it. What the next hop has acknowledged is kept as the base of its next delta while there is room.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from tailrace.paramserver.codec.choose import LinkEncoder
from tailrace.paramserver.errors import ParamServerError, RelayUnreachable, VersionRetired, VersionSuperseded
from tailrace.paramserver.machine.protocol import MemorySegment, Thread
from tailrace.paramserver.relays.context import RelayContext
from tailrace.paramserver.relays.slot import Lease, Publication, Slot, SlotState
from tailrace.paramserver.wire.agreement import Offer
from tailrace.paramserver.wire.authentication import HANDSHAKE_S, connect
from tailrace.paramserver.wire.channel import Channel
from tailrace.paramserver.wire.sending import send_version

_FIRST_RETRY_S, _LAST_RETRY_S = 0.25, 15.0
_PASSED_ON = (SlotState.RECEIVING, SlotState.COMPLETE, SlotState.SEALED)
_KEPT = (*_PASSED_ON, SlotState.PARTIAL, SlotState.RETIRING)
_Key = tuple[int, int]


@dataclass
class _Retry:
    """The time at which to try a version again."""

    at: float = 0.0
    pause_s: float = _FIRST_RETRY_S


class Forwarder:
    """Delivers every version of a slot table to one other relay. It begins at once.

    Args:
        address: the other relay's address.
        relay: this one.
    """

    def __init__(self, address: str, relay: RelayContext) -> None:
        self.address, self._relay, self._table, self._machine = address, relay, relay.table, relay.machine
        self._closed = False
        self._delivered: set[tuple[_Key, bool]] = set()  # with whether it was delivered sealed
        self._told: set[_Key] = set()  # retirements
        self._sent: dict[_Key, set[int]] = {}
        self._encoder = relay.means.encoder(self._machine.now)
        self._retries: dict[_Key | None, _Retry] = {}
        self.error: str | None = None
        self._channel: Channel | None = None
        self._thread: Thread = self._machine.spawn(self._run, f"{relay.name} to {address}")

    def retry(self) -> None:
        """Check again at once what the next hop lacks; it may be another relay at the same address."""
        with self._table.changed:
            self._delivered.clear()
            self._told.clear()
            self._retries.clear()
            self.error = None
            self._table.changed.notify_all()

    def close(self) -> None:
        """Stop. The thread ends soon; `join` waits for it."""
        with self._table.changed:
            self._closed = True
            if self._channel is not None:
                self._channel.shutdown()
            self._table.changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the end after `close`."""
        self._thread.join(timeout_s)

    def alive(self) -> bool:
        """Whether its thread still runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._table.changed:
                if self._closed:
                    self._drop_channel()
                    return
                retired, work = self._retirements(), self._work()
                if not retired and work is None:
                    self._table.changed.wait(self._pause())
                    continue
            if retired:
                self._tell(retired)
            elif work is not None:
                self._deliver(work)

    def _pause(self) -> float | None:
        now = self._machine.now()
        return min((retry.at - now for retry in self._retries.values() if retry.at > now), default=None)

    def _may_try(self, key: _Key | None) -> bool:
        retry = self._retries.get(key)
        return retry is None or self._machine.now() >= retry.at

    def _retirements(self) -> list[_Key]:
        """The versions that the next hop must still be told to retire."""
        if not self._may_try(None):
            return []
        return [key for key in self._table.retired() if key not in self._told]

    def _work(self) -> Publication | None:
        """The newest version that the next hop is not known to have so, unless it is too early to try again."""
        here = {p.manifest.key for slot in self._table.slots if (p := slot.publication) and slot.state in _KEPT}
        for key in [key for key in self._retries if key is not None and key not in here]:
            self._succeeded(key)  # it went away, and its error with it
        for key in [key for key in self._sent if key not in here]:
            del self._sent[key]
        waiting = [
            publication
            for slot in self._table.slots
            if (publication := slot.publication) is not None
            and slot.state in _PASSED_ON
            and (publication.manifest.key, publication.sealed) not in self._delivered
            and (publication.manifest.key, False) not in self._delivered
            and self._may_try(publication.manifest.key)
        ]
        # First what is sealed there and must not be any more: a newer version may have to wait for that.
        return max(waiting, key=lambda p: ((p.manifest.key, True) in self._delivered, p.manifest.stamp), default=None)

    def _tell(self, retired: list[_Key]) -> None:
        try:
            self._open().request({"op": "retire", "keys": [list(key) for key in retired]}, self._relay.stall_s)
        except (ParamServerError, OSError) as error:
            self._drop_channel()
            self._failed(None, f"retirements to {self.address}: {error}")
        else:
            with self._table.changed:
                self._told.update(retired)
                self._succeeded(None)

    def _deliver(self, publication: Publication) -> None:
        leased = self._table.lease_for_forwarding(publication, f"forwarding to {self.address}")
        if leased is None:
            return
        key, sealed = publication.manifest.key, publication.sealed
        whole = False
        try:
            channel = self._open()
            sealed = publication.sealed  # it may have been revealed while we connected
            slot = leased[0]
            whole = send_slot(
                channel,
                self._relay,
                slot,
                publication,
                sealed=sealed,
                encoder=self._encoder,
                check=self._check_open,
                give_up=lambda: self._table.wanted(slot) or self._closed,
                sent=self._sent.setdefault(key, set()),
            )
            if whole and self._relay.means.codecs:
                self._table.keep_base(key, self.address)
        except VersionRetired:  # the next hop holds newer ones
            whole, sealed = True, False
        except VersionSuperseded:  # the next hop has no slot, and a writer here needs this one
            self._drop_channel()
        except (ParamServerError, OSError) as error:
            self._drop_channel()
            self._failed(key, f"version {publication.manifest.version} to {self.address}: {error}")
        finally:
            self._table.release(*leased)
        if whole:
            with self._table.changed:
                self._delivered.add((key, sealed))
                self._sent.pop(key, None)
                self._succeeded(key)

    def _check_open(self) -> None:
        if self._closed:
            raise RelayUnreachable("the relay is no longer a next hop")

    def _open(self) -> Channel:
        if self._channel is not None and not self._channel.readable(0):  # readable between requests: the peer closed
            return self._channel
        self._drop_channel()
        channel, _ = connect(
            self._machine, self.address, token=self._relay.token, timeout_s=HANDSHAKE_S, stall_s=self._relay.stall_s
        )
        with self._table.changed:
            self._channel = channel
            self._delivered.clear()  # it may be another relay at the same address
            self._told.clear()
            self._check_open()
        return channel

    def _succeeded(self, key: _Key | None) -> None:
        self._retries.pop(key, None)
        if not self._retries:
            self.error = None

    def _failed(self, key: _Key | None, error: str) -> None:
        with self._table.changed:
            if self._closed:
                return
            retry = self._retries.setdefault(key, _Retry())
            retry.at = self._machine.now() + retry.pause_s
            retry.pause_s = min(_LAST_RETRY_S, 2 * retry.pause_s)
            self.error = error
        sys.stderr.write(f"tailrace relay {self._relay.name}: cannot forward {error}\n")

    def _drop_channel(self) -> None:
        with self._table.changed:
            if self._channel is not None:
                self._channel.close()
                self._channel = None


class Hops:
    """Keeps a forwarder for each next hop. A hop that stays in the list keeps its connection and its transfer.

    Args:
        relay: the relay whose hops they are.
    """

    def __init__(self, relay: RelayContext) -> None:
        self._relay, self._lock = relay, relay.machine.lock()
        self._forwarders: dict[str, Forwarder] = {}
        self._ending: list[Forwarder] = []
        self._closed = False

    def set_next(self, addresses: Sequence[str]) -> None:
        """Deliver to these relays from now on, beginning with the versions that each lacks."""
        with self._lock:
            if self._closed:
                return
            before, self._forwarders = self._forwarders, {}
            for address in addresses:
                kept = before.pop(address, None)
                if kept is not None:
                    kept.retry()
                self._forwarders[address] = kept or Forwarder(address, self._relay)
            self._end(list(before.values()))

    def status(self) -> dict[str, object]:
        """The next hops, and the last error on the way to each. `next` is one address, null, or a list of several."""
        with self._lock:
            hops = list(self._forwarders.values())
        addresses = [hop.address for hop in hops]
        errors = [hop.error for hop in hops if hop.error is not None]
        return {
            "next": addresses if len(addresses) > 1 else next(iter(addresses), None),
            "hops": {hop.address: hop.error for hop in hops},
            "forward_error": "; ".join(errors) if errors else None,
        }

    def close(self, timeout_s: float) -> None:
        """Stop all, and wait for their threads."""
        with self._lock:
            self._closed = True
            ending = [*self._ending, *self._forwarders.values()]
            self._end(list(self._forwarders.values()))
            self._forwarders = {}
        for forwarder in ending:
            forwarder.join(timeout_s)

    def _end(self, forwarders: Sequence[Forwarder]) -> None:
        self._ending = [forwarder for forwarder in self._ending if forwarder.alive()]
        for forwarder in forwarders:
            forwarder.close()
            self._ending.append(forwarder)


# Sends a version that a relay holds or is receiving, to the next relay or to who asked for it.


class SlotSupply:
    """A `Supply` from a leased slot. Chunks go out as they arrive.

    Args:
        relay: the relay.
        slot: leased for as long as this is in use.
        publication: the version in it.
        check: called before every chunk; raises to end the transfer.
    """

    def __init__(self, relay: RelayContext, slot: Slot, publication: Publication, check: Callable[[], None]) -> None:
        self._table, self._slot, self._publication = relay.table, slot, publication
        self._now, self._check = relay.machine.now, check
        # How long to wait for the next chunk from upstream before the receiver is let go for now. Less than a peer may be
        # silent, so that a slow upstream never looks like a dead relay.
        self._patience_s = relay.stall_s / 2
        self._base: tuple[tuple[int, int], Slot, Lease] | None = None

    @property
    def memory(self) -> MemorySegment:
        return self._slot.memory

    def next(self, wanted: list[int]) -> int | None:
        deadline = self._now() + self._patience_s
        with self._table.changed:
            while True:
                self._check()
                there = self._publication.checksums
                for position, index in enumerate(wanted):
                    if index in there:
                        return position
                remaining = deadline - self._now()
                if self._slot.state is not SlotState.RECEIVING or remaining <= 0:
                    return None
                self._table.changed.wait(remaining)

    def checksum(self, index: int) -> int:
        return self._publication.checksums[index]

    def base(self, key: tuple[int, int]) -> memoryview | None:
        """The base is held until `close`, unless a new version needs its slot."""
        if self._base is None or self._base[0] != key:
            self.close()
            leased = self._table.lease_base(key, f"base of version {self._publication.manifest.version}")
            if leased is None:
                return None
            self._base = (key, *leased)
        if self._table.wanted(self._base[1]):
            self.close()
            return None
        return self._base[1].memory.view

    def __enter__(self) -> SlotSupply:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the base back."""
        if self._base is not None:
            self._table.release(self._base[1], self._base[2])
            self._base = None


def send_slot(
    channel: Channel,
    relay: RelayContext,
    slot: Slot,
    publication: Publication,
    *,
    sealed: bool,
    encoder: LinkEncoder,
    check: Callable[[], None] = lambda: None,
    give_up: Callable[[], bool] = lambda: False,
    sent: set[int] | None = None,
) -> bool:
    """Offer the version in a leased slot and send what the receiver lacks of it, see `send_version`.

    Args:
        check: called before every chunk; raises to end the transfer.
    """
    manifest, supply = publication.manifest, SlotSupply(relay, slot, publication, check)
    with supply, relay.means.exported(slot.memory, manifest.total_bytes) as transports:
        return send_version(
            channel,
            Offer(manifest, sealed, transports, relay.means.codecs, relay.table.bases(manifest), relayed=True),
            supply,
            relay.counts,
            go_timeout_s=relay.slot_timeout_s + relay.stall_s,
            encoder=encoder,
            give_up=give_up,
            sent=sent,
        )
