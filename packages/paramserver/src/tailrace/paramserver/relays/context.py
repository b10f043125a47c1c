"""What the connections of one relay have in common."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.paramserver.machine.protocol import Machine
from tailrace.paramserver.relays.hops import Hops
from tailrace.paramserver.relays.slots import SlotTable
from tailrace.paramserver.wire.counts import Counts
from tailrace.paramserver.wire.means import Means


@dataclass(frozen=True, slots=True)
class Context:
    """A relay, as its connections see it.

    Args:
        name: of the relay.
        token: shared secret, to fetch from other relays with.
        table: its versions.
        hops: its next hops.
        means: its transports.
        counts: what it sent and received.
        max_bytes: the largest version to accept.
        slot_timeout_s: how long a new version may wait for readers.
        stall_s: how long a peer may make no progress.
        machine: where it runs.
    """

    name: str
    token: str
    table: SlotTable
    hops: Hops
    means: Means
    counts: Counts
    max_bytes: int | None
    slot_timeout_s: float
    stall_s: float
    machine: Machine
