"""Scoring: what is to be scored, and what is given up because its verifier broke too often."""

from __future__ import annotations

from collections.abc import Collection

from tailrace import contracts as c
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.lives import Phase, TrajectoryState
from tailrace.pipeline.controller.outbox import Outbox


class Scoring:
    """Trajectories that are complete and have no reward.

    Args:
        attempts: how often a verifier that breaks is tried.
    """

    def __init__(self, ledger: Ledger, outbox: Outbox, attempts: int) -> None:
        self._ledger, self._outbox, self._attempts = ledger, outbox, attempts
        self.up = False
        self.next: list[str] = []

    def came_up(self) -> None:
        """A scorer serves. What one before it was given and did not answer goes again, and counts as no attempt."""
        self.up = True
        self.next = [state.id for state in self._ledger.trajectories.values() if state.phase is Phase.DONE]

    def went_down(self) -> None:
        """It is gone, with all that it was given."""
        self.up = False
        self.next.clear()

    def failed(self, state: TrajectoryState) -> bool:
        """A verifier broke. Returns whether that was once too often."""
        state.scoring_attempts += 1
        if state.scoring_attempts >= self._attempts:
            return True
        self.next.append(state.id)
        return False

    def dropped(self, names: Collection[str]) -> None:
        """These need no reward any more."""
        if self.next:
            gone = set(names)
            self.next = [name for name in self.next if name not in gone]

    def send(self) -> None:
        """What finished since the last time goes as one command."""
        if self.next and self.up:
            names, self.next = self.next, []
            self._outbox.send(c.Score, trajectories=tuple(names))
