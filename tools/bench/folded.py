"""Lets figures follow a simulation as they follow a run's log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Folded:
    """Observes a simulation.

    Args:
        hears: what is called with the time and the event or command, by its type.
    """

    def __init__(self, hears: Mapping[type, Callable[[float, Any], None]]) -> None:
        self._hears = hears

    def observe(self, now: float, events: Any, commands: Any, run: Any) -> None:
        del run
        for one in (*events, *commands):
            hear = self._hears.get(type(one))
            if hear is not None:
                hear(now, one)

    def tick(self, now: float, executor: Any) -> None:
        del now, executor
