"""Collects garbage between decisions, since a full collection stops the driver for 0.4 s at 131,072 trajectories."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace import contracts as c

if TYPE_CHECKING:
    from tailrace.controller.view import RunView
    from tailrace.runtime.executor.executor import Executor


class GarbageCollection:
    """Collects garbage after each training step, once its commands are sent, and then freezes all live objects.

    Until the next step the interpreter's own collections look only at new objects. Use this observer only in a run that owns
    its process, since it undoes the `gc.freeze` of others.
    """

    def __init__(self) -> None:
        self._due = True

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

    @staticmethod
    def collect() -> None:
        """Collect once and exclude the remaining objects from later collections."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
