"""Links between simulated hosts: bandwidth, latency, cuts and damage, and the bytes that are on their way."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from simulation.scheduler import Scheduler, Task


@dataclass(eq=False)
class Link:
    """One direction between two hosts, shared by all their connections.

    Args:
        bandwidth: bytes per second.
        latency_s: of every byte.
        damage: how many of the next transmissions get one wrong byte.
    """

    bandwidth: float
    latency_s: float
    cut: bool = False
    free_at: float = 0.0
    damage: int = 0
    damaged: int = 0
    pipes: list[Pipe] = field(default_factory=list)


class Pipe:
    """One direction of a connection. What is sent and not yet read is bounded, so that a sender must wait for a reader."""

    def __init__(self, scheduler: Scheduler, link: Link, capacity: int) -> None:
        self._scheduler, self.link, self.capacity = scheduler, link, capacity
        self.segments: deque[tuple[float, memoryview]] = deque()
        self.unread = 0
        self.end_at: float | None = None  # when the reader sees the end
        self.reader: Task | None = None
        self.writer: Task | None = None
        self.reader_gone = False
        self.last_arrival = 0.0  # bytes keep their order
        self.carried = self.broken = False  # any chunk; before its sender or receiver was done
        link.pipes.append(self)

    def send(self, data: bytes, *, weights: bool) -> None:
        """Put bytes on their way; there must be room. `weights`: they belong to a chunk."""
        now, link = self._scheduler.now, self.link
        self.carried = self.carried or weights
        link.free_at = max(now, link.free_at) + len(data) / link.bandwidth
        if link.damage:
            link.damage -= 1
            link.damaged += 1
            at = int(self._scheduler.random() * len(data))
            data = data[:at] + bytes([data[at] ^ (1 << int(8 * self._scheduler.random()))]) + data[at + 1 :]
            self._scheduler.note(f"a byte of a transmission of {len(data)} bytes is damaged")
        arrival = math.inf if link.cut else max(self.last_arrival, link.free_at + link.latency_s)
        self.last_arrival = arrival
        self.segments.append((arrival, memoryview(data)))
        self.unread += len(data)
        self.wake_reader()

    def take(self, view: memoryview) -> int:
        """Move what has arrived to a buffer; how many bytes."""
        count = 0
        now = self._scheduler.now
        while self.segments and count < view.nbytes:
            arrival, data = self.segments[0]
            if arrival > now:
                break
            n = min(len(data), view.nbytes - count)
            view[count : count + n] = data[:n]
            count += n
            if n < len(data):
                self.segments[0] = (arrival, data[n:])
            else:
                self.segments.popleft()
        if count:
            self.unread -= count
            if self.writer is not None:
                self._scheduler.wake(self.writer)
        return count

    def next_arrival(self) -> float:
        """When there is something to read, or the end."""
        if self.segments:
            return self.segments[0][0]
        return math.inf if self.end_at is None else self.end_at

    def finish(self) -> None:
        """Nothing more comes."""
        if self.end_at is None:
            arrival = math.inf if self.link.cut else self._scheduler.now + self.link.latency_s
            self.end_at = max(self.last_arrival, arrival)
            self.wake_reader()

    def hold(self) -> None:
        """The link was cut: what has not arrived stays away."""
        now = self._scheduler.now
        self.segments = deque((arrival if arrival <= now else math.inf, data) for arrival, data in self.segments)
        if self.segments and self.segments[-1][0] == math.inf:
            self.last_arrival = math.inf
        if self.end_at is not None and self.end_at > now:
            self.end_at = math.inf

    def heal(self) -> None:
        """The link is back: what stayed away is sent again."""
        at = self._scheduler.now + self.link.latency_s
        self.segments = deque((at if arrival == math.inf else arrival, data) for arrival, data in self.segments)
        self.last_arrival = at
        if self.end_at == math.inf:
            self.end_at = at
        self.wake_reader()

    def wake_reader(self) -> None:
        """It looks again."""
        if self.reader is not None:
            self._scheduler.wake(self.reader)

    def wake_writer(self) -> None:
        """It looks again."""
        if self.writer is not None:
            self._scheduler.wake(self.writer)
