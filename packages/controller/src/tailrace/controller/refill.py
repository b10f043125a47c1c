"""Opens groups while there is room and the remaining batches need them, so that no groups are left over at the end."""

from __future__ import annotations

from tailrace import contracts as c
from tailrace.controller.plugin_faults import answered
from tailrace.controller.rounds import Rounds
from tailrace.controller.state import State


class Refill:
    """Asks batching for groups."""

    def __init__(self, state: State, rounds: Rounds) -> None:
        self._state, self._rounds = state, rounds
        self._ledger, self._trainer = state.ledger, state.trainer
        self._gate, self._source = state.gate, state.source

    def run(self) -> None:
        """Open groups.

        Raises:
            PluginAnswerError: batching gave an answer that its contract forbids.
        """
        behind = None  # no launch changes it
        while self._trainer.step < self._trainer.steps and self._wants_group():
            behind = self._state.behind() if behind is None else behind
            launch = self._source.next(self._state.progress(behind))
            if launch is None:
                return
            if not isinstance(launch, c.Launch) or launch.prompt < 0 or not 1 <= launch.needed <= launch.samples:
                expected = "a prompt from 0 and 1 <= needed <= samples"
                raise answered("batching", self._state.spec.batching, "next", launch, expected)
            self._source.launched(self._ledger.admit(launch), launch)

    @property
    def open_limit(self) -> int:
        """Most groups that may be open at once: waiting, generating or, unless those are evicted, complete."""
        held_back = None if self._state.spec.eviction is not None else self._state.spec.buffer_groups
        limits = [limit for limit in (self._gate.room, held_back) if limit is not None]
        return min(limits, default=self._state.spec.open_batches * self._state.spec.batch_groups)

    @property
    def soon(self) -> int:
        """Groups that may be launched soon: as many as may be open at once, but no more than the run still launches."""
        return max(0, min(self.open_limit, self._wanted - self._launched)) if not self._rounds.used else self.open_limit

    @property
    def left(self) -> int:
        """Groups of the run that have not started."""
        return self._wanted - self._launched + len(self._ledger.waiting.unstarted.groups)

    @property
    def _wanted(self) -> int:
        return self._trainer.steps * self._state.spec.batch_groups + self._state.spec.batching.surplus_groups

    @property
    def _launched(self) -> int:
        counts = self._ledger.counts
        return counts.admitted - counts.filtered - counts.failed - counts.deferred

    def _wants_group(self) -> bool:
        """Whether there is room for a group, and a batch left that it may be part of."""
        ledger = self._ledger
        self._rounds.tell()
        held = 0 if self._state.spec.eviction is not None else len(ledger.buffered)
        room, limit = self._gate.room, self.open_limit
        if room is not None and self._trainer.stepping is None:
            # What was trained on before its batch is complete is still admission's.
            limit = min(limit, room - len(self._trainer.accumulated))
        if ledger.generating + held >= limit:
            return False
        if self._rounds.used:
            return self._rounds.may_launch()
        return self._launched < self._wanted
