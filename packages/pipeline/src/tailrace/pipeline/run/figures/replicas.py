"""How many replicas a run added and removed after its start, folded from its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace import contracts as c
from tailrace.controller.members import REPLICA

_FAILED = frozenset({c.Why.FAILED, c.Why.MACHINE, *c.SUSPICIONS})


class ReplicaFigures:
    """A fold over the instants of a log.

    `added` counts replicas that were started beyond those of the run's start; one that takes the place of a dead one is none of
    them. `removed` counts replicas that were stopped; one that failed is none of them.
    """

    def __init__(self) -> None:
        self.added = self.removed = 0
        self._began = False

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """Take in one instant."""
        del now, events
        began = self._began
        for command in commands:
            if isinstance(command, c.Start):
                self._began = True
                self.added += began and command.role == REPLICA
            elif isinstance(command, c.Stop):
                self.removed += command.role == REPLICA and command.reason.why not in _FAILED

    def plain(self) -> dict[str, Any]:
        """The figures as fields of a summary."""
        return {"replicas_added": self.added, "replicas_removed": self.removed}
