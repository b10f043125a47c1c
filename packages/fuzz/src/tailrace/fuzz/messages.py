"""How messages travel in a fuzz case: late, in another order, twice, or not before a partition heals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from tailrace.contracts import CallFailed, Command, Event, Finished, Route, Scored, Turned, TurnEnded
from tailrace.fuzz.case import MessagesCase
from tailrace.fuzz.controller_deaths import Deaths
from tailrace.fuzz.faults import Moment
from tailrace.runtime.executor.deployment import REPLICA

_REPEATED = (Finished, Scored, TurnEnded, Turned, CallFailed)


class Messages:
    """A `Transport`.

    Commands to a replica each take their own time; whatever else goes the same way never overtakes what went before.

    Args:
        random: draws delays and repetitions.
        deaths: of the controller, which may come before a command is sent.
    """

    def __init__(self, case: MessagesCase, random: Random, deaths: Deaths) -> None:
        self._deaths = deaths
        self._delay_s, self._repeat, self._random = case.delay_s, case.repeat, random
        self._begun: Counter[str] = Counter()  # how often each trajectory began
        self._last_s: dict[tuple[str, str, str], float] = {}
        self._closed_until_s: dict[tuple[str, str], float] = {}

    def commands(
        self, role: str, member: str, commands: Sequence[Command], now: float
    ) -> list[tuple[float, list[Command]]]:
        self._deaths.at(Moment.SENDING)
        if role != REPLICA:
            return [(self._in_order("to", role, member, now), list(commands))]
        arrivals = []
        for command in commands:
            if isinstance(command, Route):
                self._begun.update(ref.trajectory for ref in command.trajectories if not ref.kept)
            arrivals.append((self._arrival_s(role, member, now), [command]))
            if self._repeats():
                arrivals.append((self._arrival_s(role, member, now), [command]))
        return arrivals

    def report(self, role: str, member: str, now: float) -> float:
        return self._in_order("from", role, member, now)

    def repeated(self, events: Sequence[Event]) -> Callable[[], list[Event]] | None:
        """See `MessageTransport`. Nothing of a trajectory is said again once a replica was told to begin it anew."""
        again = [(e, self._begun[e.trajectory]) for e in events if isinstance(e, _REPEATED) and self._repeats()]
        return (lambda: [event for event, begun in again if self._begun[event.trajectory] == begun]) if again else None

    def renewed(self, role: str, member: str) -> None:
        self._closed_until_s.pop((role, member), None)
        for way in ("to", "from"):
            self._last_s.pop((way, role, member), None)

    def close(self, role: str, member: str, until_s: float) -> None:
        """A partition: nothing gets to a member or away from it before a time."""
        self._closed_until_s[role, member] = max(until_s, self._closed_until_s.get((role, member), 0.0))

    def closed(self, role: str, member: str, now: float) -> bool:
        """Whether nothing gets through now."""
        return now < self._closed_until_s.get((role, member), 0.0)

    def _in_order(self, way: str, role: str, member: str, now: float) -> float:
        key = (way, role, member)
        arrival = max(self._last_s.get(key, 0.0), self._arrival_s(role, member, now))
        self._last_s[key] = arrival
        return arrival

    def _repeats(self) -> bool:
        return self._repeat > 0 and self._random.random() < self._repeat

    def _arrival_s(self, role: str, member: str, now: float) -> float:
        delay_s = self._random.random() * self._delay_s if self._delay_s else 0.0
        return max(now, self._closed_until_s.get((role, member), 0.0)) + delay_s
