"""The ledger: one owner for the life of every trajectory and group.

    PENDING ──route──► RUNNING ──finish──► DONE ──score──► SCORED
       ▲                  │ interrupt, replica down
       └──────────────────┘

    GENERATING ──all scored──► BUFFERED ──given to it──► TRAINING ──stepped──► TRAINED
         │                        ▲ │ expired                │ trainer down
         ├─► FAILED               │ └─► FILTERED             │
         └─► FILTERED             └──────────────────────────┘

A pending trajectory waits in the pool (`pool.py`), or until the store has dropped what it had (`discards.py`).

Invariant (design, 2): every admitted group ends as TRAINED, FILTERED or FAILED exactly once. If it did not hold, prompts
would be lost or trained on twice, and nobody would see it in the reward curve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tailrace.contracts import Candidate, Launch, Pool, Purpose, TrajectoryRef, TrajectoryView
from tailrace.pipeline.controller.lives import Counts, GroupPhase, GroupState, Phase, TrajectoryState
from tailrace.pipeline.controller.pool import Waiting
from tailrace.pipeline.errors import ControllerError

# An enum's members are slow to look up, and every trajectory passes each of these.
_PENDING: Final = Phase.PENDING
_RUNNING: Final = Phase.RUNNING
_DONE: Final = Phase.DONE
_SCORED: Final = Phase.SCORED
_TRAIN: Final = Purpose.TRAIN
_EVAL: Final = Purpose.EVAL


@dataclass(slots=True)
class Ledger:
    """All trajectories and groups that are not yet settled. Settled groups leave it once their checkpoint is durable.

    Trajectories are kept one by one from the start of their group on; before, nothing tells them apart, and `unstarted` has the
    group of each. `moving` has the replica that each moves away from, `discarding` are those that begin anew once the store
    has dropped what they had. `consumed` lists the groups of each version that training makes or made, `unfinished` counts
    trajectories by the version whose weights they still need.

    Args:
        mixes_versions: a trajectory may go on under newer weights.
    """

    mixes_versions: bool = False
    trajectories: dict[str, TrajectoryState] = field(default_factory=dict)
    groups: dict[int, GroupState] = field(default_factory=dict)
    waiting: Waiting = field(default_factory=Waiting)
    unstarted: dict[str, int] = field(default_factory=dict)
    moving: dict[str, str] = field(default_factory=dict)
    discarding: dict[str, None] = field(default_factory=dict)
    stranded_evaluations: dict[str, None] = field(default_factory=dict)
    buffered: dict[int, None] = field(default_factory=dict)
    consumed: dict[int, list[int]] = field(default_factory=dict)
    unfinished: dict[int, int] = field(default_factory=dict)
    generating: int = 0
    counts: Counts = field(default_factory=Counts)

    # ---- the pool -------------------------------------------------------------------------------------------------

    @property
    def levels(self) -> Pool:
        """What waits for a replica, the oldest version first, what has none last."""
        return self.waiting.levels()

    @property
    def pooled(self) -> int:
        """Trajectories in the pool."""
        return len(self.waiting)

    def admit(self, launch: Launch) -> int:
        """Open a group; its trajectories are pending. Returns its number."""
        group = self.counts.admitted
        members = tuple([f"{group}.{sample}" for sample in range(launch.samples)])
        self.groups[group] = GroupState(group, members, launch.prompt, launch.needed)
        self.waiting.unstarted.add(group, members)
        self.unstarted.update(dict.fromkeys(members, group))
        self.generating += 1
        self.counts.admitted += 1
        return group

    def add(self, evaluation: TrajectoryState) -> None:
        """Add an evaluation's trajectory, which is routed at once."""
        self.trajectories[evaluation.id] = evaluation

    def get(self, trajectory: str) -> TrajectoryState | None:
        """The trajectory, or None when it is settled or unknown."""
        state = self.trajectories.get(trajectory)
        if state is None and (group := self.waits_with(trajectory)) is not None:
            return next((fresh for fresh in _fresh(group) if fresh.id == trajectory), None)
        return state

    def waits_with(self, trajectory: str) -> GroupState | None:
        """The group that a trajectory waits to start with; None if it has started, or is settled or unknown."""
        group = self.unstarted.get(trajectory)
        return None if group is None else self.groups[group]

    def started(self) -> dict[int, tuple[int, bool]]:
        """Groups that count for admission, with their version and whether they are complete."""
        return {
            group.index: (group.version, group.phase is GroupPhase.BUFFERED)
            for group in self.groups.values()
            if group.version is not None and group.phase in (GroupPhase.GENERATING, GroupPhase.BUFFERED)
        }

    def start(self, group: GroupState, version: int) -> None:
        """The first trajectory of a group is about to be routed: the group's version is fixed. See `pool_rest`."""
        group.version = version
        self._leaves_unstarted(group)
        group.states = _fresh(group)
        group.rewards = [None] * len(group.members)
        self.trajectories.update(zip(group.members, group.states, strict=True))

    def pool_rest(self, group: GroupState) -> None:
        """Trajectories of a group that has just started and were not routed with its first one wait by themselves."""
        for state in group.states:
            if state.phase is _PENDING and state.id not in self.waiting:
                self._pend(state)

    def exact(self, state: TrajectoryState) -> bool:
        """Whether only its own version can continue a trajectory."""
        return state.version is not None and (state.purpose is _EVAL or not self.mixes_versions)

    # ---- trajectories ---------------------------------------------------------------------------------------------

    def routed(self, states: Iterable[TrajectoryState], replica: str, version: int) -> list[TrajectoryRef]:
        """A replica takes trajectories. Returns what it is told."""
        refs: list[TrajectoryRef] = []
        waiting, mixes = self.waiting.level_of, self.mixes_versions
        news = 0
        for state in states:
            name, at = state.id, version
            if name in waiting:
                self.waiting.remove(name)
            if mixes and state.purpose is _TRAIN:
                if state.version is not None and state.version != version:
                    self.counts.resumed_on_newer += 1
                    at = min(version, state.version)
            else:
                if state.version != version:
                    news += 1
                    if state.version is not None:
                        self.unfinished[state.version] -= 1
                        self.counts.regenerated_trajectories += 1
                        state.tokens = 0
                if state.purpose is _EVAL:
                    self.stranded_evaluations.pop(name, None)
            state.phase, state.replica, state.version = _RUNNING, replica, at
            refs.append(
                TrajectoryRef(name, state.group, state.sample, state.purpose, state.mode, state.tokens, state.prompt)
            )
        if news:
            self.unfinished[version] = self.unfinished.get(version, 0) + news
        return refs

    def view(self, state: TrajectoryState) -> TrajectoryView:
        """How policies see a trajectory that runs."""
        if self.mixes_versions and state.purpose is _TRAIN:
            return TrajectoryView(state.id, state.group, self.groups[state.group].version, state.tokens)
        return TrajectoryView(state.id, state.group, state.version, state.tokens, True)

    def returned(self, trajectory: str, tokens: int | None) -> TrajectoryState:
        """A trajectory has left its replica unfinished and is pending again."""
        state = self.trajectories[trajectory]
        state.phase, state.replica = _PENDING, None
        if tokens is not None:
            state.tokens = tokens
        self._pend(state)
        return state

    def discarding_begins(self, state: TrajectoryState) -> None:
        """A pending trajectory is not in the pool until what exists of it is dropped."""
        self.waiting.remove(state.id)
        self.stranded_evaluations.pop(state.id, None)
        self.discarding[state.id] = None

    def restarted(self, state: TrajectoryState, version: int | None = None, tokens: int = 0) -> None:
        """What exists of a pending trajectory is this, by default nothing."""
        self.waiting.remove(state.id)
        self.discarding.pop(state.id, None)
        if state.phase is _PENDING or state.phase is _RUNNING:
            self._needed(state, -1)
        state.phase, state.replica, state.version, state.tokens = _PENDING, None, version, tokens
        self._needed(state, 1)
        self._pend(state)

    def bind(self, trajectory: TrajectoryState, destination: str | None) -> None:
        """A trajectory moves to a replica, or does not any more."""
        trajectory.destination = destination
        if destination is None:
            self.moving.pop(trajectory.id, None)
        else:
            self.moving[trajectory.id] = trajectory.replica or ""

    def finished(self, state: TrajectoryState, tokens: int, trainer_version: int) -> bool:
        """A trajectory is complete. Returns whether that is news."""
        phase = state.phase
        if phase is _DONE or phase is _SCORED:
            return False
        if phase is _PENDING:
            self.waiting.remove(state.id)
            self.stranded_evaluations.pop(state.id, None)
            self.discarding.pop(state.id, None)
        if state.version is not None and (not self.mixes_versions or state.purpose is _EVAL):
            self.unfinished[state.version] -= 1
        state.phase, state.replica = _DONE, None
        state.tokens, state.completed_at = tokens, trainer_version
        return True

    def scored(self, state: TrajectoryState, reward: float) -> GroupState | None:
        """A finished trajectory has its reward. Returns its group if it has one, which is for training."""
        state.phase, state.reward = _SCORED, reward
        if state.purpose is _EVAL:
            return None
        group = self.groups[state.group]
        group.scored += 1
        group.rewards[state.sample] = reward
        group.tokens += state.tokens
        version = state.version
        if version != group.version:
            assert version is not None
            group.newer = group.newer or {}
            group.newer[version] = group.newer.get(version, 0) + 1
        return group

    def settle_eval(self, ids: Iterable[str]) -> None:
        """Forget evaluation trajectories."""
        for name in ids:
            state = self.trajectories.get(name)
            if state is not None:
                self._forget(state)

    # ---- groups ---------------------------------------------------------------------------------------------------

    def complete(self, group: GroupState) -> tuple[Candidate, list[TrajectoryState]]:
        """A group has all rewards that it needs. Returns what it is worth, and its surplus members, which are forgotten."""
        surplus: list[TrajectoryState] = []
        if group.scored < len(group.members):
            surplus = [state for state in group.states if state.phase is not _SCORED]
            group.states = [state for state in group.states if state.phase is _SCORED]
            group.members = tuple([state.id for state in group.states])
            for state in surplus:
                self._forget(state)
        rewards = tuple([reward for reward in group.rewards if reward is not None])
        group.candidate = Candidate(group.index, min(group.versions()), self.counts.completed, rewards, group.tokens)
        self._buffer(group)
        self.counts.completed += 1
        self.counts.surplus_trajectories += len(surplus)
        self.generating -= 1
        return group.candidate, surplus

    def candidates(self) -> list[Candidate]:
        """Complete groups, in completion order."""
        found = [self.groups[index].candidate for index in self.buffered]
        return [candidate for candidate in found if candidate is not None]

    def consume(self, groups: Sequence[int], version: int) -> None:
        """A batch that makes `version` takes these groups, as a whole or in parts."""
        for index in groups:
            group = self.groups[index]
            if group.phase is not GroupPhase.BUFFERED:
                raise ControllerError(f"group {index} is {group.phase}, expected {GroupPhase.BUFFERED}")
            del self.buffered[index]
            group.phase, group.consumed_for = GroupPhase.TRAINING, version
        self.consumed.setdefault(version, []).extend(groups)

    def batch(self, version: int) -> list[TrajectoryState]:
        """Everything that was consumed for a version so far, parts that were accumulated first."""
        return [state for index in self.consumed.get(version, ()) for state in self.groups[index].states]

    def trained(self, version: int) -> None:
        """The step that made `version` is done."""
        for index in self.consumed.get(version, ()):
            group = self.groups[index]
            group.phase = GroupPhase.TRAINED
            self._count_trained(group, 1)

    def roll_back(self, durable: int) -> None:
        """Groups that were consumed for versions newer than a checkpoint go back to the buffer."""
        undone = [version for version in self.consumed if version > durable]
        back = [self.groups[index] for version in undone for index in self.consumed.pop(version)]
        for group in sorted(back, key=_order):
            if group.phase is GroupPhase.TRAINED:
                self._count_trained(group, -1)
            self._buffer(group)

    def settle(self, version: int) -> list[int]:
        """The trainer can not go back beyond a version: what that trained on never comes back. Returns the groups."""
        ended: list[int] = []
        for made in [made for made in self.consumed if made <= version]:
            settled = [index for index in self.consumed[made] if self.groups[index].phase is GroupPhase.TRAINED]
            if len(settled) == len(self.consumed[made]):
                del self.consumed[made]
                trajectories = self.trajectories
                for index in settled:
                    for name in self.groups.pop(index).members:
                        del trajectories[name]
                ended += settled
        return ended

    def drop(self, index: int, phase: GroupPhase, reason: str) -> list[TrajectoryState]:
        """End a group as FILTERED or FAILED. Returns its members, which are forgotten."""
        group = self.groups.pop(index)
        if group.phase is GroupPhase.GENERATING:
            self.generating -= 1
        self.buffered.pop(index, None)
        if phase is GroupPhase.FILTERED:
            self.counts.filtered += 1
            self.counts.filtered_because[reason] = self.counts.filtered_because.get(reason, 0) + 1
        else:
            self.counts.failed += 1
        if group.version is None:
            self._leaves_unstarted(group)
            return _fresh(group)
        for state in group.states:
            self._forget(state)
        return group.states

    def versions_needed(self) -> list[int]:
        """Versions whose weights an unfinished trajectory still needs, oldest first."""
        self.unfinished = {version: count for version, count in self.unfinished.items() if count}
        return sorted(self.unfinished)

    # ---- helpers --------------------------------------------------------------------------------------------------

    def _leaves_unstarted(self, group: GroupState) -> None:
        self.waiting.unstarted.remove(group.index)
        for name in group.members:
            del self.unstarted[name]

    def _pend(self, state: TrajectoryState) -> None:
        if state.purpose is _EVAL:
            self.stranded_evaluations[state.id] = None
            return
        version = self.groups[state.group].version
        if version is None:
            return  # it waits with its group
        exact = state.version is not None and not self.mixes_versions
        if exact:
            assert state.version is not None
            version = state.version
        self.waiting.add(version, TrajectoryView(state.id, state.group, version, state.tokens, exact))

    def _needed(self, state: TrajectoryState, count: int) -> None:
        """An unfinished trajectory needs its version from now on, or does not any more."""
        if state.version is not None and (not self.mixes_versions or state.purpose is _EVAL):
            self.unfinished[state.version] = self.unfinished.get(state.version, 0) + count

    def _buffer(self, group: GroupState) -> None:
        group.phase, group.consumed_for = GroupPhase.BUFFERED, 0
        self.buffered[group.index] = None

    def _count_trained(self, group: GroupState, count: int) -> None:
        self.counts.trained += count
        self.counts.trained_trajectories += count * len(group.members)
        self.counts.trained_tokens += count * group.tokens

    def _forget(self, state: TrajectoryState) -> None:
        del self.trajectories[state.id]
        if state.phase is _PENDING or state.phase is _RUNNING:
            self.waiting.remove(state.id)
            self.stranded_evaluations.pop(state.id, None)
            self.discarding.pop(state.id, None)
            self._needed(state, -1)
        if state.destination is not None:
            self.moving.pop(state.id, None)


def _fresh(group: GroupState) -> list[TrajectoryState]:
    return [
        TrajectoryState(name, group.index, sample, _TRAIN, "", group.prompt)
        for sample, name in enumerate(group.members)
    ]


def _order(group: GroupState) -> int:
    assert group.candidate is not None
    return group.candidate.order
