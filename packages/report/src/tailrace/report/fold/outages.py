"""Outages: members that went down, or that the controller took for down, and when they were up again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace import contracts as c
from tailrace.controller.members import REPLICA
from tailrace.pipeline.run.figures.folding import Hears
from tailrace.report.reason_words import why

_NO_FAULT = (c.Why.LOST_IN_CRASH, c.Why.TASK_RESTART)
_Key = tuple[str, str]


@dataclass(slots=True)
class Outage:
    """A member that went down, and when it was up again."""

    at_s: float
    role: str
    member: str
    reason: str
    up_s: float | None = None


class Outages:
    """Hears of members that come and go. `all` are the outages, in order. Who was told to stop has none."""

    def __init__(self) -> None:
        self.hears: Hears = {
            c.Start: self._starts,
            c.Up: self._up,
            c.Down: self._down,
            c.Restart: self._restarts,
            c.Stop: self._stops,
            c.Resumed: self._resumed,
        }
        self.all: list[Outage] = []
        self._open: dict[_Key, Outage] = {}
        self._there: dict[_Key, None] = {}  # members that are not down and not gone
        self._leaving: set[_Key] = set()

    def _starts(self, now: float, command: c.Start) -> None:
        del now
        self._there[command.role, command.id] = None

    def _up(self, now: float, event: c.Up) -> None:
        key = event.role, event.id
        self._there[key] = None
        outage = self._open.pop(key, None)
        if outage is not None:
            outage.up_s = now

    def _down(self, now: float, event: c.Down) -> None:
        key = event.role, event.id
        if key not in self._there:
            return
        del self._there[key]
        if event.cause is not c.Cause.STOPPED and key not in self._leaving:
            self._goes_out(now, key, event.reason)
        self._leaving.discard(key)

    def _restarts(self, now: float, command: c.Restart) -> None:
        """One that is not down was taken for down by the controller itself, unless all of them start again."""
        key = command.role, command.id
        if command.reason.why is c.Why.TASK_RESTART:
            self._leave()
        if key in self._there and command.reason.why not in _NO_FAULT:
            self._goes_out(now, key, why(command.reason))
        self._there[key] = None

    def _stops(self, now: float, command: c.Stop) -> None:
        key = command.role, command.id
        if command.reason.why in c.SUSPICIONS:
            self._there.pop(key, None)
            self._goes_out(now, key, why(command.reason))
        elif "left" not in command.reason.numbers:  # else it is down, and given up
            self._leaving.add(key)

    def _resumed(self, now: float, event: c.Resumed) -> None:
        """The driver died, and every process with it."""
        del now
        self._leave()
        if event.replicas is not None:  # the first so many stay
            for key in [key for key in self._there if key[0] == REPLICA][event.replicas :]:
                del self._there[key]

    def _leave(self) -> None:
        for key in self._leaving:
            self._there.pop(key, None)
        self._leaving.clear()

    def _goes_out(self, now: float, key: _Key, reason: str) -> None:
        self.all.append(Outage(now, *key, reason))
        self._open[key] = self.all[-1]
