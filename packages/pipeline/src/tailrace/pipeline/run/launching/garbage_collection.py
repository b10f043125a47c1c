"""Collects garbage between decisions, since a full collection stops the driver for 0.4 s at 131,072 trajectories."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tailrace import contracts as c

if TYPE_CHECKING:
    from tailrace.controller.view import RunView
    from tailrace.runtime.executor.executor import Executor

SHARE = 0.01
"""Full collections take at most this part of a run's time."""


class GarbageCollection:
    """Collects garbage after each training step, once its commands are sent, and then freezes all live objects.

    Until the next step the interpreter's own collections look only at new objects. So does the collection after a step, but for
    a full one now and then: that also finds circles among objects which were frozen and have died since. Use this observer only
    in a run that owns its process, since it undoes the `gc.freeze` of others.

    Args:
        clock: seconds, by which a full collection is measured.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._due, self._next_full_s = True, -math.inf

    def observe(
        self,
        now: float,  # noqa: ARG002 - the protocol's arguments
        events: Sequence[c.Event],
        commands: Sequence[c.Command],  # noqa: ARG002
        run: RunView,  # noqa: ARG002
    ) -> None:
        """Note that a step ended."""
        self._due = self._due or any(type(event) is c.Stepped for event in events)

    def tick(self, now: float, executor: Executor) -> None:  # noqa: ARG002 - the protocol's arguments
        """Collect, if a step ended since the last collection."""
        if self._due:
            self._due = False
            self.collect()

    def collect(self) -> None:
        """Collect, all or what is new, and freeze what lives."""
        began_s = self._clock()
        full = began_s >= self._next_full_s
        if full:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        if full:
            ended_s = self._clock()
            self._next_full_s = ended_s + (ended_s - began_s) / SHARE
