"""The ends of groups: complete, filtered, surplus, evicted, expired or failed.

Invariant: a dropped group is gone from every owner at once (ledger, admission, batching, replicas, scoring, sessions), and the
store is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tailrace import contracts as c
from tailrace.controller.plugin_faults import chosen
from tailrace.controller.rounds import Rounds
from tailrace.controller.state import State
from tailrace.controller.trajectories import GroupPhase, GroupState, TrajectoryState

_FAILURES = frozenset({c.GroupEnd.FAILED, c.GroupEnd.UNSCORED})
_DEFERRED = {
    c.Why.NOT_SCORED: c.Why.NOT_SCORED_YET,
    c.Why.SURPLUS_GROUP: c.Why.DEFERRED,
    c.Why.DELAYED: c.Why.DELAYED_AGAIN,
}  # of a prompt that comes again


class Groups:
    """Ends groups.

    `freed` says whether groups have left since the last cycle, so that there is room for new ones.
    """

    def __init__(self, state: State, rounds: Rounds) -> None:
        self.freed = False
        self._state, self._rounds = state, rounds
        self._ledger, self._fleet, self._gate, self._source = state.ledger, state.fleet, state.gate, state.source
        self._discards, self._scoring = state.discards, state.scoring
        self._told: set[int] = set()  # at an end of the run, which may go on with more steps

    def generated(self, index: int) -> None:
        """Abort a group's other samples once as many as it needs have finished generating.

        The first to have a score would be a race of verifiers too, which those of wrong answers often lose.
        """
        group = self._ledger.groups[index]
        late = self._ledger.late(group)
        if late:
            self._unbind(late)
            self._ledger.trim(group, late)
            self._abort(late, c.Reason(c.Why.SURPLUS_SAMPLE))

    def complete(self, group: GroupState) -> None:
        """Complete a group that has its rewards: keep it for the trainer or filter it."""
        self._unbind(group.states)
        candidate = self._ledger.complete(group)
        told = group.kept and self._rounds.used  # its round counts it already
        if told or self._source.keeps(group.index, candidate.rewards):
            self._gate.complete(group.index)
            if not told:
                self._rounds.completed(group.index)
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
        eviction, capacity = self._state.spec.eviction, self._state.spec.buffer_groups
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
        """Drop groups that came too late for their batch or round. Call it before another group completes."""
        late: list[int] = []
        if found := self._gate.surplus():
            late += self.named("admission gate", self._gate, "surplus", found, GroupPhase.GENERATING)
        if found := self._rounds.surplus():
            late += self.named("batching source", self._source, "surplus", found, GroupPhase.GENERATING)
        for group in late:
            self.drop(group, c.GroupEnd.SURPLUS, c.Reason(c.Why.SURPLUS_GROUP))

    def named(self, axis: str, owner: object, method: str, answer: Sequence[int], phase: GroupPhase) -> list[int]:
        """Check that a gate or a source named groups that are in a phase, and return them.

        Raises:
            PluginAnswerError: it named something else.
        """
        known = [group.index for group in self._ledger.groups.values() if group.phase is phase]
        return chosen(axis, owner, method, answer, known)

    def drop(self, group: int, end: c.GroupEnd, reason: c.Reason) -> None:
        """Drop a group, which will not be trained on. Its prompt may come again, if the batching source says so."""
        self._unbind(self._ledger.groups[group].states)
        phase = GroupPhase.FAILED if end in _FAILURES else GroupPhase.FILTERED
        if self._source.ended(group, end) is c.PromptFate.AGAIN:
            phase = GroupPhase.DEFERRED
            reason = replace(reason, why=_DEFERRED.get(reason.why, reason.why))
        members = self._ledger.drop(group, phase, reason.why, delayed=end is c.GroupEnd.DELAYED)
        self._gate.drop(group)
        self.freed = True
        self._abort(members, reason)

    def _unbind(self, trajectories: Sequence[TrajectoryState]) -> None:
        """Cancel the moves of trajectories."""
        if self._ledger.moving:
            for state in trajectories:
                self._state.unbind(state)

    def _abort(self, trajectories: Sequence[TrajectoryState], reason: c.Reason) -> None:
        self._state.brought.dropped.append((trajectories, reason))
        holders = []
        for trajectory in trajectories:
            self._fleet.comes_back(trajectory)
            if trajectory.replica is not None:
                replica = self._fleet.replicas[trajectory.replica]
                replica.aborted += 1
                replica.left(trajectory.id, evaluation=False)
                holders.append(replica.id)
        names = [trajectory.id for trajectory in trajectories]
        self._scoring.dropped(names)
        self._discards.abort(names, reason, holders)
