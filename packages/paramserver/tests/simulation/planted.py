"""Bugs, planted by replacing a piece of the protocol code: the checks must find each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from tailrace.paramserver.clients.pusher import Pusher
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.relays.forward import Forwarder
from tailrace.paramserver.relays.slot import LeaseBook, Publication, Slot, SlotState
from tailrace.paramserver.relays.slots import SlotTable
from tailrace.paramserver.wire.channel import Channel, ChunkHeader
from tailrace.paramserver.wire.receiving import Intake

PLANTED: dict[str, Callable[[], AbstractContextManager[object]]] = {}


def _plant(make: Callable[[], AbstractContextManager[object]]) -> Callable[[], AbstractContextManager[object]]:
    PLANTED[make.__name__] = make
    return make


@_plant
def serves_what_it_did_not_verify() -> AbstractContextManager[object]:
    take = Intake.take

    def trusting(self: Intake, channel: Channel, header: ChunkHeader, *rest: Any) -> int | None:
        found = take(self, channel, header, *rest)
        return header.checksum if found is not None else None

    return mock.patch.object(Intake, "take", trusting)


@_plant
def resumes_with_a_wrong_set_of_chunks() -> AbstractContextManager[object]:
    """It believes that the chunk after the last one had arrived, too."""
    interrupt = SlotTable.interrupt

    def optimistic(self: SlotTable, slot: Slot) -> None:
        publication = slot.publication
        if publication is not None and publication.checksums and (missing := publication.missing()):
            publication.checksums[missing[0]] = 0
        interrupt(self, slot)

    return mock.patch.object(SlotTable, "interrupt", optimistic)


@_plant
def asks_for_everything_again() -> AbstractContextManager[object]:
    return mock.patch.object(Publication, "missing", lambda self: list(range(self.manifest.chunk_count)))


@_plant
def drops_what_arrived() -> AbstractContextManager[object]:
    interrupt = SlotTable.interrupt

    def forgetful(self: SlotTable, slot: Slot) -> None:
        interrupt(self, slot)
        if slot.publication is not None:
            slot.publication.checksums = {}

    return mock.patch.object(SlotTable, "interrupt", forgetful)


@_plant
def keeps_the_chunks_of_another_version() -> AbstractContextManager[object]:
    """A partial version is not cleared when its slot gets a new key."""
    reserve = SlotTable.reserve

    def mixing(self: SlotTable, manifest: Manifest, *args: Any, **options: Any) -> Slot | None:
        before = {slot: slot.publication for slot in self.slots if slot.state is SlotState.PARTIAL}
        slot = reserve(self, manifest, *args, **options)
        if slot is not None and (old := before.get(slot)) and slot.publication and old.manifest != manifest:
            there = {i: value for i, value in old.checksums.items() if i < manifest.chunk_count - 1}
            slot.publication.checksums.update(there)
        return slot

    return mock.patch.object(SlotTable, "reserve", mixing)


@_plant
def forgets_leases() -> AbstractContextManager[object]:
    return mock.patch.object(LeaseBook, "add")


@_plant
def shows_sealed_versions() -> AbstractContextManager[object]:
    reserve = SlotTable.reserve

    def open_handed(self: SlotTable, manifest: Manifest, *args: Any, **options: Any) -> Slot | None:
        return reserve(self, manifest, *args, **{**options, "sealed": False})

    return mock.patch.object(SlotTable, "reserve", open_handed)


@_plant
def trusts_the_clock_of_a_new_trainer() -> AbstractContextManager[object]:
    return mock.patch.object(Pusher, "_newest_stamp", return_value=-1)


@_plant
@contextlib.contextmanager
def gives_a_next_hop_up_after_one_failure() -> Iterator[None]:
    with (
        mock.patch.object(Forwarder, "_may_try", lambda self, key: key not in self._retries),
        mock.patch.object(Forwarder, "retry"),
    ):
        yield


@_plant
def waits_without_a_deadline() -> AbstractContextManager[object]:
    init = Channel.__init__

    def patient(self: Channel, stream: Any, stall_s: float, peer: str) -> None:
        init(self, stream, 1e6, peer)

    return mock.patch.object(Channel, "__init__", patient)


@_plant
def leaves_a_thread_behind() -> AbstractContextManager[object]:
    """A forwarder that is closed does not notice."""
    return mock.patch.object(Forwarder, "close")


@_plant
@contextlib.contextmanager
def takes_two_locks_in_two_orders() -> Iterator[None]:
    """Forwarders release under a lock that the acceptor holds while it waits for theirs."""
    retry = Forwarder.retry

    def holding(self: Forwarder) -> None:
        with self._table.changed:
            self.join(1e9)
            retry(self)

    with mock.patch.object(Forwarder, "retry", holding):
        yield
