"""The ends of groups: complete, filtered, surplus, evicted, expired or failed. A dropped group is removed from every owner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace import contracts as c
from tailrace.pipeline.controller.coordinator import Coordinator
from tailrace.pipeline.controller.discards import Discards
from tailrace.pipeline.controller.fleet import Replicas
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.plugin_faults import chosen
from tailrace.pipeline.controller.scoring import Scoring
from tailrace.pipeline.controller.states import GroupPhase, GroupState, TrajectoryState
from tailrace.pipeline.spec import PipelineSpec

_FAILURES = frozenset({c.GroupEnd.FAILED, c.GroupEnd.UNSCORED})


class Groups:
    """Ends groups.

    `freed` says whether groups have left since the last cycle, so that there is room for new ones.

    Args:
        gate: the admission gate.
        source: the batching source.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        ledger: Ledger,
        fleet: Replicas,
        gate: c.AdmissionGate,
        source: c.BatchingSource,
        discards: Discards,
        scoring: Scoring,
        coordinator: Coordinator,
    ) -> None:
        self.freed = False
        self._spec, self._ledger, self._fleet, self._gate, self._source = spec, ledger, fleet, gate, source
        self._discards, self._scoring, self._coordinator = discards, scoring, coordinator
        self._told: set[int] = set()  # at an end of the run, which may go on with more steps

    def complete(self, group: GroupState) -> None:
        """Complete a group that has its rewards: abort surplus samples, then keep it for the trainer or filter it."""
        self._unbind(group)
        candidate, surplus = self._ledger.complete(group)
        if surplus:
            self._abort(surplus, c.Reason(c.Why.SURPLUS_SAMPLE))
        if self._source.keeps(group.index, candidate.rewards):
            self._gate.complete(group.index)
        else:
            self.drop(group.index, c.GroupEnd.FILTERED, c.Reason(c.Why.NO_SIGNAL))
        self.drop_surplus()
        self._evict()

    def settled(self, groups: Iterable[int]) -> None:
        """Tell the source of groups that are trained on for good, each once."""
        for group in groups:
            if group not in self._told:
                self._source.ended(group, c.GroupEnd.TRAINED)

    def over(self) -> None:
        """Tell the source of all groups at the end of the run, all of which are trained on."""
        self.settled(list(self._ledger.groups))
        self._told.update(self._ledger.groups)

    def _evict(self) -> None:
        """Where complete groups do not hold replicas back, those beyond the buffer's capacity leave."""
        eviction, capacity = self._spec.eviction, self._spec.buffer_groups
        if eviction is None:
            return
        self.freed = True  # a complete group takes no room
        if capacity is None or len(self._ledger.buffered) <= capacity:
            return
        candidates, count = self._ledger.candidates(), len(self._ledger.buffered) - capacity
        keys = [candidate.key for candidate in candidates]
        for index in chosen("eviction", eviction, "evict", eviction.evict(candidates, count), keys, count):
            self.drop(index, c.GroupEnd.FILTERED, c.Reason(c.Why.EVICTED))

    def drop_surplus(self) -> None:
        """Drop groups that came too late for their batch (redundancy). Call it before another group completes."""
        for late in list(self._gate.surplus()):
            self.drop(late, c.GroupEnd.SURPLUS, c.Reason(c.Why.SURPLUS_GROUP))

    def drop(self, group: int, end: c.GroupEnd, reason: c.Reason) -> None:
        """Drop a group, which will not be trained on. Its prompt may come again, if the batching source says so."""
        self._unbind(self._ledger.groups[group])
        phase = GroupPhase.FAILED if end in _FAILURES else GroupPhase.FILTERED
        if self._source.ended(group, end) is c.PromptFate.AGAIN and end is c.GroupEnd.UNSCORED:
            phase, reason = GroupPhase.DEFERRED, c.Reason(c.Why.NOT_SCORED_YET, numbers=reason.numbers)
        members = self._ledger.drop(group, phase, reason.why)
        self._gate.drop(group)
        self.freed = True
        self._abort(members, reason)

    def _unbind(self, group: GroupState) -> None:
        """Cancel all moves of a group's trajectories."""
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
