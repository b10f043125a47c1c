"""How long work takes with a core of its own, from clocks that were read while members shared the cores.

On a GPU that is the time that passed. On shared cores the time that passed says as much about the others; the processor time
of the process says what the work itself took, and how many cores it kept busy says how long that is with cores of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tailrace.fleetsim.profile.samples import Clock


class Kind(StrEnum):
    """Which clock tells a member's own time."""

    WALL = "wall"
    PROCESS = "process"
    THREAD = "thread"


@dataclass(frozen=True, slots=True)
class Timing:
    """One member's clock.

    Args:
        kind: which clock.
        cores: that the member keeps busy while it computes, at least 1; 1 for the wall clock.
    """

    kind: Kind
    cores: float = 1.0

    def spent_s(self, began: Clock, ended: Clock) -> float:
        """Seconds with cores of its own."""
        if self.kind is Kind.WALL:
            return ended.wall_s - began.wall_s
        return self.processor_s(began, ended) / self.cores

    def processor_s(self, began: Clock, ended: Clock) -> float:
        """Processor seconds; on the wall clock's members none are shared."""
        if self.kind is Kind.PROCESS:
            return ended.process_s - began.process_s
        return ended.thread_s - began.thread_s if self.kind is Kind.THREAD else 0.0


def timing_of(device: str, *, processes: bool, spans: Iterable[tuple[Clock, Clock]]) -> Timing:
    """The clock of a member.

    Args:
        device: what it computes on.
        processes: every member has a process of its own; else only threads can be told apart.
        spans: when it computed; the ninth decile of how many cores it kept busy counts.
    """
    if device != "cpu":
        return Timing(Kind.WALL)
    kind = Kind.PROCESS if processes else Kind.THREAD
    own = Timing(kind)
    busy = sorted(
        own.processor_s(began, ended) / passed
        for began, ended in spans
        if (passed := ended.wall_s - began.wall_s) > 0.001
    )
    return Timing(kind, max(1.0, busy[int(0.9 * len(busy))]) if busy else 1.0)
