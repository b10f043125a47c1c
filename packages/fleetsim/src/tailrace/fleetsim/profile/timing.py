"""How long work takes on a member's own cores, computed from clocks read while members shared the cores.

On a GPU this is the time that passed. On shared cores the time that passed depends on the other members too. There it is the
process's processor time divided by the number of cores that the member keeps busy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tailrace.fleetsim.profile.samples import ClockReading


class ClockKind(StrEnum):
    """The clock that measures a member's own time."""

    WALL = "wall"
    PROCESS = "process"
    THREAD = "thread"


@dataclass(frozen=True, slots=True)
class Timing:
    """One member's clock.

    Args:
        kind: which clock.
        cores: number of cores that the member keeps busy while it computes, at least 1; 1 for the wall clock.
    """

    kind: ClockKind
    cores: float = 1.0

    def spent_s(self, began: ClockReading, ended: ClockReading) -> float:
        """Seconds that the work takes on the member's own cores."""
        if self.kind is ClockKind.WALL:
            return ended.wall_s - began.wall_s
        return self.processor_s(began, ended) / self.cores

    def processor_s(self, began: ClockReading, ended: ClockReading) -> float:
        """Processor seconds of the work; 0 with the wall clock, whose members share no cores."""
        if self.kind is ClockKind.PROCESS:
            return ended.process_s - began.process_s
        return ended.thread_s - began.thread_s if self.kind is ClockKind.THREAD else 0.0


def timing_of(device: str, *, processes: bool, spans: Iterable[tuple[ClockReading, ClockReading]]) -> Timing:
    """The clock of a member.

    Args:
        device: the device that it computes on.
        processes: whether every member has its own process; otherwise only threads can be told apart.
        spans: times in which it computed; the ninth decile of the cores that it kept busy is used.
    """
    if device != "cpu":
        return Timing(ClockKind.WALL)
    kind = ClockKind.PROCESS if processes else ClockKind.THREAD
    own = Timing(kind)
    busy = sorted(
        own.processor_s(began, ended) / passed
        for began, ended in spans
        if (passed := ended.wall_s - began.wall_s) > 0.001
    )
    return Timing(kind, max(1.0, busy[int(0.9 * len(busy))]) if busy else 1.0)
