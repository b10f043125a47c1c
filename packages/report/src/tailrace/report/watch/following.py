"""Follows a run's log as it grows: the controller is shown what is new, and the folds of the report look on.

    events.jsonl ──LogFollower──► take_in ──► controller ──► view ─┐
                                                                   ├─► frame.py ──► the page
                                         folds, alarms, incidents ─┘

Nothing is read before somebody asks, and then for a limited time, so that a page that nobody looks at costs nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tailrace.contracts import TailraceError
from tailrace.pipeline.run.directory import RunDirectory, read_json
from tailrace.pipeline.run.eventlog import LogFollower
from tailrace.pipeline.run.figures.folding import Audience
from tailrace.pipeline.run.figures.incidents import Incidents
from tailrace.pipeline.run.replay import controller_of, take_in
from tailrace.report.fold.folds import LiveFolds
from tailrace.report.fold.trajectories import Trajectories
from tailrace.report.watch.alarms import Alarms

LOOK_S = 5.0
"""How often it is asked whether the run's process lives."""
MOST_INCIDENTS = 1000


@dataclass(frozen=True, slots=True)
class Incident:
    """A line for a person, with its time on the run's clock."""

    at_s: float
    said: str


class Story:
    """What is known of a run up to an instant: its controller and what was folded beside it."""

    def __init__(self, directory: RunDirectory) -> None:
        self.controller = controller_of(directory)
        self.run = self.controller.view
        self.folds = LiveFolds(self.run)
        self.trajectories, self.alarms = Trajectories(self.run), Alarms(self.run, self.folds)
        self.incidents: list[Incident] = []
        self.told = 0
        self.instants = 0
        self._lines, self._audience = Incidents(), Audience(self.trajectories, self.alarms)

    def observe(self, now: float, events: Any, commands: Any) -> None:
        """One instant, which the controller has taken in."""
        self.folds.observe(now, events, commands)
        self._audience.observe(now, events, commands)
        self.alarms.settle(now)
        new = [Incident(now, line) for line in self._lines.lines(now, events, commands, self.run.occupied)]
        self.incidents += new
        self.told += len(new)
        del self.incidents[:-MOST_INCIDENTS]
        self.instants += 1


class FollowedRun:
    """A run that somebody looks at. Safe to call from any thread while its `lock` is held.

    Args:
        directory: the run.
        speed: seconds of the run's clock that pass in a second of the viewer's, from the log's begin; None: all that there is
            at once, and then as it comes.
        clock: returns seconds.

    Attributes:
        generation: which reading of the log this is. It changes where a log was replaced, and what was told before is void.
        trouble: why the log cannot be read; empty if it can.
        behind: bytes of the log that are not taken in.
    """

    def __init__(
        self, directory: RunDirectory, *, speed: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.directory, self.speed = directory, speed
        self.lock = threading.RLock()
        self.generation = int(1000 * time.time())  # that of another server of the same run differs
        self.trouble = ""
        self.held_back = False
        self.clock, self._version = clock, directory.version
        self._status: dict[str, Any] = {}
        self._status_at = 0
        self._alive, self._looked_s = False, -LOOK_S
        self._began_s: float | None = None
        self._begin()

    def _begin(self) -> None:
        self.generation += 1
        self.trouble = ""
        self.log = LogFollower(self.directory.events)
        self.story = Story(self.directory)

    @property
    def behind(self) -> int:
        """Bytes of the log that have not been taken in."""
        return max(0, self.log.size - self.log.read_bytes)

    @property
    def reading(self) -> bool:
        """Whether there is more to read at once."""
        return bool(self.behind) and not self.held_back and not self.trouble

    def advance(self, budget_s: float) -> None:
        """Take in what is new, for so many seconds at most; at least one instant, if there is one."""
        if self.log.replaced():
            self._begin()
        if self.trouble:
            return
        until_s = self.clock() + budget_s
        self._began_s = self.clock() if self._began_s is None else self._began_s
        self.held_back, first = False, True
        try:
            for instant in self.log.instants():
                if not first and self.clock() >= until_s:
                    return
                if self.speed is not None and instant.now > self.speed * (self.clock() - self._began_s):
                    self.held_back = True
                    return
                first = False
                story = self.story
                commands = take_in(story.controller, instant, self.log.path, self.log.line + 1, version=self._version)
                story.observe(instant.now, instant.events, commands)
        except TailraceError as error:
            self.trouble = str(error)

    def status(self) -> dict[str, Any]:
        """What the run's process wrote last of its status; empty before it has."""
        try:
            at = self.directory.status.stat().st_mtime_ns
            if at != self._status_at:
                self._status, self._status_at = read_json(self.directory.status), at
        except (OSError, TailraceError):  # it is not written yet, or is being replaced
            pass
        return self._status

    def alive(self) -> bool:
        """Whether the run's process lives, as of the last few seconds."""
        if self.clock() - self._looked_s >= LOOK_S:
            self._looked_s, self._alive = self.clock(), self.directory.running()
        return self._alive
