"""Scoring: which trajectories are to be scored.

Invariant: while a scorer is up, each finished trajectory that has no reward and was not given up is in `next` or with it. One
that comes up gets all of them.
"""

from __future__ import annotations

from collections.abc import Collection

from tailrace import contracts as c
from tailrace.controller.ledger import Ledger
from tailrace.controller.outbox import Outbox
from tailrace.controller.trajectories import Phase


class Scoring:
    """Complete trajectories without a reward."""

    def __init__(self, ledger: Ledger, outbox: Outbox) -> None:
        self._ledger, self._outbox = ledger, outbox
        self.up = False
        self.next: list[str] = []

    def came_up(self) -> None:
        """Note that a scorer is up. What the last one left unanswered is sent again and does not count as an attempt."""
        self.up = True
        self.next = [state.id for state in self._ledger.trajectories.values() if state.phase is Phase.DONE]

    def went_down(self) -> None:
        """Note that the scorer is gone with all that it was given."""
        self.up = False
        self.next.clear()

    def dropped(self, names: Collection[str]) -> None:
        """Forget trajectories that no longer need a reward."""
        if self.next:
            gone = set(names)
            self.next = [name for name in self.next if name not in gone]

    def send(self) -> None:
        """Send everything that finished since the last call in one command."""
        if self.next and self.up:
            names, self.next = self.next, []
            self._outbox.send(c.Score, trajectories=tuple(names))
