"""The ends of groups: complete, filtered, surplus, expired or failed. What is dropped leaves everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace import contracts as c
from tailrace.pipeline.controller.coordinator import Coordinator
from tailrace.pipeline.controller.discards import Discards
from tailrace.pipeline.controller.fleet import Fleet
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.lives import GroupPhase, GroupState, TrajectoryState
from tailrace.pipeline.controller.scoring import Scoring
from tailrace.pipeline.spec import PipelineSpec


class Groups:
    """Ends groups.

    `freed`: groups left since the last cycle, so the pool has room.

    Args:
        gate, source: admission and batching at work.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        ledger: Ledger,
        fleet: Fleet,
        gate: c.AdmissionGate,
        source: c.BatchingSource,
        discards: Discards,
        scoring: Scoring,
        coordinator: Coordinator,
    ) -> None:
        self.freed = False
        self._spec, self._ledger, self._fleet, self._gate, self._source = spec, ledger, fleet, gate, source
        self._discards, self._scoring, self._coordinator = discards, scoring, coordinator

    def complete(self, group: GroupState) -> None:
        """A group has its rewards: surplus samples are aborted; it is kept for the trainer or filtered."""
        self._unbind(group)
        candidate, surplus = self._ledger.complete(group)
        if surplus:
            self._abort(surplus, c.Reason(c.Why.SURPLUS_SAMPLE))
        if self._source.keeps(group.index, candidate.rewards):
            self._gate.complete(group.index)
        else:
            self.drop(group.index, c.GroupEnd.FILTERED, c.Reason(c.Why.NO_SIGNAL))
        self.drop_surplus()

    def drop_surplus(self) -> None:
        """Before another group completes: what came too late for its batch goes (redundancy)."""
        for late in list(self._gate.surplus()):
            self.drop(late, c.GroupEnd.SURPLUS, c.Reason(c.Why.SURPLUS_GROUP))

    def drop(self, group: int, end: c.GroupEnd, reason: c.Reason) -> None:
        """A group is not trained on."""
        self._unbind(self._ledger.groups[group])
        phase = GroupPhase.FAILED if end is c.GroupEnd.FAILED else GroupPhase.FILTERED
        members = self._ledger.drop(group, phase, reason.why)
        self._gate.drop(group)
        self._source.ended(group, end)
        self.freed = True
        self._abort(members, reason)

    def _unbind(self, group: GroupState) -> None:
        """Nothing of a group is on its way to another replica any more."""
        if self._ledger.moving:
            for state in group.states:
                self._coordinator.unbind(state)

    def _abort(self, trajectories: Sequence[TrajectoryState], reason: c.Reason) -> None:
        holders = []
        for trajectory in trajectories:
            if trajectory.replica is not None:
                replica = self._fleet.replicas[trajectory.replica]
                replica.aborted += 1
                replica.left(trajectory.id, evaluation=False)
                holders.append(replica.id)
        names = [trajectory.id for trajectory in trajectories]
        self._scoring.dropped(names)
        self._discards.abort(names, reason, holders)
