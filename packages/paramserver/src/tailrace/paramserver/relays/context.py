"""The state that the connections of one relay, and its ways to the next ones, share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tailrace.paramserver.errors import SourceBusy
from tailrace.paramserver.machine.protocol import HostInterface
from tailrace.paramserver.relays.slots import SlotTable
from tailrace.paramserver.wire.agreement import Means
from tailrace.paramserver.wire.channel import TrafficCounts


class PullTurns:
    """At most `most` pulls run at once, so that they do not divide the link; others wait, in no certain order.

    RobustRL, section 5.2.1.

    Args:
        most: how many; None: any number.
        machine: the machine that the relay runs on.
    """

    def __init__(self, most: int | None, machine: HostInterface) -> None:
        self._most, self._now, self._changed = most, machine.now, machine.condition()
        self._taken = 0

    @contextmanager
    def one(self, wait_s: float) -> Iterator[None]:
        """Take a turn for as long as the context is open.

        Raises:
            SourceBusy: there was none in `wait_s`.
        """
        deadline = self._now() + wait_s
        with self._changed:
            while self._most is not None and self._taken >= self._most:
                if (remaining := deadline - self._now()) <= 0:
                    raise SourceBusy(f"the relay serves {self._taken} others, and had no turn in {wait_s:.3g} s")
                self._changed.wait(remaining)
            self._taken += 1
        try:
            yield
        finally:
            with self._changed:
                self._taken -= 1
                self._changed.notify_all()


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
        turns: those who pull from it over the network.
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
    turns: PullTurns
