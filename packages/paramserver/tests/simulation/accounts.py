"""Every chunk accounted for: what arrived is kept and not sent again, and what was sent in vain was on its way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from simulation.schedule import Schedule
from simulation.world import World

from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.relays.slot import Publication, Slot, SlotState
from tailrace.paramserver.relays.slots import SlotTable
from tailrace.paramserver.wire.channel import TrafficCounts

_HEADER = 21


class Accounts:
    """Watches the slot tables and counters of all relays, publishers and readers of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        # What arrived of interrupted versions, as long as nothing but a transfer of the same may take it away.
        self._kept: dict[tuple[SlotTable, tuple[int, int]], tuple[Slot, frozenset[int]]] = {}
        self._counts: list[TrafficCounts] = []
        self.resumed = self.saved = 0

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the accounts of everything that happens in here."""
        reserve, interrupt, arrived, counts = (
            SlotTable.reserve,
            SlotTable.interrupt,
            SlotTable.arrived,
            TrafficCounts.__init__,
        )
        accounts = self

        def watched_reserve(table: SlotTable, manifest: Manifest, *args: Any, **options: Any) -> Slot | None:
            slot = reserve(table, manifest, *args, **options)
            if slot is not None:
                accounts._reserved(table, manifest, slot, lent=options.get("loan") is not None)
            return slot

        def watched_interrupt(table: SlotTable, slot: Slot) -> None:
            publication = slot.publication
            there = frozenset() if publication is None else frozenset(publication.checksums)
            interrupt(table, slot)
            if publication is not None and slot.state is SlotState.PARTIAL:
                accounts._kept[(table, publication.manifest.key)] = (slot, there)

        def watched_arrived(table: SlotTable, publication: Publication, index: int, checksum: int) -> None:
            if index in publication.checksums:
                accounts._world.scheduler.fail(
                    f"chunk {index} of version {publication.manifest.version} was there, and came again"
                )
            arrived(table, publication, index, checksum)

        def watched_counts(self: TrafficCounts, *args: Any, **options: Any) -> None:
            counts(self, *args, **options)
            accounts._counts.append(self)

        with (
            mock.patch.object(SlotTable, "reserve", watched_reserve),
            mock.patch.object(SlotTable, "interrupt", watched_interrupt),
            mock.patch.object(SlotTable, "arrived", watched_arrived),
            mock.patch.object(TrafficCounts, "__init__", watched_counts),
        ):
            yield

    def _reserved(self, table: SlotTable, manifest: Manifest, slot: Slot, *, lent: bool) -> None:
        before = self._kept.pop((table, manifest.key), None)
        if before is not None and before[0] is slot and not lent and slot.publication is not None:
            lost = before[1] - set(slot.publication.checksums)
            if lost:
                self._world.scheduler.fail(
                    f"{len(lost)} chunks of version {manifest.version} had arrived, and are wanted again"
                )
            self.resumed += 1
            self.saved += len(before[1])
        # Another version in this slot, or a newer one anywhere, may end what else was kept.
        self._kept = {
            (other, key): kept
            for (other, key), kept in self._kept.items()
            if other is not table or (kept[0] is not slot and key[1] > manifest.stamp)
        }

    def check(self) -> None:
        """In the end: chunks that were sent and did not arrive were damaged, or on their way when something broke."""
        sent = sum(counts.chunks_sent for counts in self._counts)
        received = sum(counts.chunks_received for counts in self._counts)
        excused = sum(counts.chunks_damaged + counts.fallbacks for counts in self._counts)
        excused += self._on_the_way(self._world.schedule)
        if sent > received + excused:
            self._world.scheduler.fail(
                f"{sent} chunks were sent and {received} received; only {excused} were damaged or on their way"
            )

    def _on_the_way(self, schedule: Schedule) -> int:
        least = _HEADER + (1 if schedule.codecs or schedule.borrows else min(schedule.chunk_bytes, 40))
        return sum(thrown // least + 2 for thrown in self._world.network.thrown())
