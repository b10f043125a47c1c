"""The state that the connections of one relay, and its ways to the next ones, share."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.paramserver.machine.protocol import HostInterface
from tailrace.paramserver.relays.slots import SlotTable
from tailrace.paramserver.wire.capabilities import Means
from tailrace.paramserver.wire.channel import TrafficCounts


@dataclass(frozen=True, slots=True)
class RelayContext:
    """A relay, as its connections and its forwarders see it.

    Args:
        name: the relay's name.
        token: shared secret, to fetch from other relays with.
        table: its versions.
        means: its transports and codecs.
        counts: totals that it sent and received.
        max_bytes: the largest version to accept.
        slot_timeout_s: how long a new version may wait for readers, here and at a next hop.
        stall_s: how long a peer may make no progress.
        machine: the machine that it runs on.
    """

    name: str
    token: str
    table: SlotTable
    means: Means
    counts: TrafficCounts
    max_bytes: int | None
    slot_timeout_s: float
    stall_s: float
    machine: HostInterface
