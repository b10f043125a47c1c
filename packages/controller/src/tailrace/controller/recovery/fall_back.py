"""Falls back to a checkpoint: what was trained on since is given to the trainer again."""

from __future__ import annotations

from tailrace import contracts as c
from tailrace.controller.batches import Batches
from tailrace.controller.groups import Groups
from tailrace.controller.plugin_faults import chosen
from tailrace.controller.rounds import Rounds
from tailrace.controller.state import State


class FallBack:
    """Sets trainer, ledger and admission back. The trainer comes up with a checkpoint, or a task starts over from one."""

    def __init__(self, state: State, rounds: Rounds, batches: Batches, groups: Groups) -> None:
        self._state, self._rounds, self._batches, self._groups = state, rounds, batches, groups

    def to(self, version: int) -> None:
        """Fall back to the checkpoint of a version."""
        state = self._state
        state.ledger.roll_back(version)
        state.trainer.fall_back(version)
        self.readmit()

    def readmit(self) -> None:
        """Tell admission which groups have started and which of them are complete. One that it gives up is dropped."""
        state = self._state
        self._rounds.fell_back()
        started = state.ledger.started()
        given_up = state.gate.reset(state.trainer.version, started)
        for group in chosen("admission gate", state.gate, "reset", given_up, started):
            self._groups.drop(group, c.GroupEnd.EXPIRED, c.Reason(c.Why.EXPIRED))
        self._groups.drop_surplus()
        self._batches.fell_back()
