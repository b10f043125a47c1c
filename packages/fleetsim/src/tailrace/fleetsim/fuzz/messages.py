"""How messages travel in a fuzz case: late, in another order, twice, or not before a partition heals."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tailrace.fleetsim.fuzz.case import MessagesCase

TRAINER_COMMANDS = "commands to the trainer"


class Messages:
    """A `Transport`.

    Commands to a replica each take their own time; whatever is `in_order` never overtakes what went the same way before.

    Args:
        random: draws delays and repetitions.
    """

    def __init__(self, case: MessagesCase, random: Random) -> None:
        self._delay_s, self._repeat, self._random = case.delay_s, case.repeat, random
        self._last_s: dict[str, float] = {}
        self._closed_until_s: dict[str, float] = {}

    def command(self, replica: str, now: float) -> Sequence[float]:
        """When a command sent now arrives: once, or twice."""
        first = self._arrival_s(replica, now)
        return (first, self._arrival_s(replica, now)) if self.repeats() else (first,)

    def report(self, replica: str, now: float) -> float:
        """When a report sent now arrives; those of one member keep their order."""
        return self.in_order(replica, replica, now)

    def in_order(self, way: str, member: str, now: float) -> float:
        """When something sent now arrives that keeps the order of its way."""
        arrival = max(self._last_s.get(way, 0.0), self._arrival_s(member, now))
        self._last_s[way] = arrival
        return arrival

    def repeats(self) -> bool:
        """Whether the next message arrives twice."""
        return self._repeat > 0 and self._random.random() < self._repeat

    def close(self, member: str, until_s: float) -> None:
        """A partition: nothing gets to a member or away from it before a time."""
        self._closed_until_s[member] = max(until_s, self._closed_until_s.get(member, 0.0))

    def open(self, member: str) -> None:
        """The member is another process now, on another machine."""
        self._closed_until_s.pop(member, None)
        self._last_s.pop(member, None)

    def _arrival_s(self, member: str, now: float) -> float:
        delay_s = self._random.random() * self._delay_s if self._delay_s else 0.0
        return max(now, self._closed_until_s.get(member, 0.0)) + delay_s
