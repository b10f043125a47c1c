"""Folds over a run's log, and how one pass over the log serves many of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tailrace import contracts as c
from tailrace.pipeline.run.eventlog import Instant

Hears = dict[type, Callable[[float, Any], None]]
"""What is called with the time, in seconds on the run's clock, and an event or command of a kind."""


class Fold(Protocol):
    """What follows a log."""

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """Take in one instant; `now` never decreases."""


class LogListener(Protocol):
    """What follows some kinds of events and commands."""

    @property
    def hears(self) -> Hears:
        """Types of events and commands that it wants to hear of, with a function for each."""


class Audience:
    """Listeners, as one fold. Each hears what came in its turn, in the order in which they are given."""

    def __init__(self, *listeners: LogListener) -> None:
        self._of: dict[type, tuple[Callable[[float, Any], None], ...]] = {}
        for listener in listeners:
            for kind, hear in listener.hears.items():
                self._of[kind] = (*self._of.get(kind, ()), hear)

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """Take in one instant: its events, then its commands."""
        for each in (events, commands):
            for one in each:
                for hear in self._of.get(type(one), ()):
                    hear(now, one)


def follow(log: Iterable[Instant], *folds: Fold) -> None:
    """Show a log to folds, in one pass."""
    for instant in log:
        for fold in folds:
            fold.observe(instant.now, instant.events, instant.commands)
