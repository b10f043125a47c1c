"""Where unfinished trajectories are between their turns, over time."""

from __future__ import annotations

from enum import IntEnum

from tailrace import contracts as c
from tailrace.controller.members import REPLICA
from tailrace.pipeline.run.figures.folding import Hears
from tailrace.report.fold.history import History
from tailrace.report.fold.series import Series


class Where(IntEnum):
    """Where a trajectory is: the rows of `Whereabouts.counts`."""

    REPLICA = 0
    SESSION = 1
    ENVIRONMENT = 2
    POOL = 3


class Whereabouts:
    """Samples at each tick how many trajectories are where, from the first turn on that ended.

    `counts` has a row for each `Where`: those on replicas, those whose turn waits for a session, those that an environment
    answers, and those that were on a replica before and wait for one.
    """

    def __init__(self, history: History) -> None:
        self.hears: Hears = {c.Tick: self._sample}
        self.counts = Series(len(Where))
        self._history = history

    def shares(self) -> list[float]:
        """Share of the trajectories' time that they spent there, from 0 to 1, by `Where`; nothing without turns."""
        spent = [sum(self.counts.row(where)) for where in Where]
        whole = sum(spent)
        return [each / whole for each in spent] if whole else []

    def close(self) -> None:
        """The log ends here."""
        self.counts.close()

    def _sample(self, now: float, event: c.Tick) -> None:
        del event
        history = self._history
        if not history.turns:
            return
        replicas = sum(len(member.holds) for (role, _), member in history.members.items() if role == REPLICA)
        answering = history.answering
        self.counts.add(now, (replicas, len(history.away) - answering, answering, len(history.pending)))
