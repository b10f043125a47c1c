"""The ledger: owns the state of every trajectory and group.

    PENDING ──route──► RUNNING ──finish──► DONE ──score──► SCORED
       ▲                  │ interrupt, replica down, or a turn of several ends: IN_ENVIRONMENT until it is answered
       └──────────────────┘

    GENERATING ──all scored──► BUFFERED ──given to it──► TRAINING ──stepped──► TRAINED
         │                        ▲ │ expired                │ trainer down
         ├─► FAILED               │ └─► FILTERED             │
         └─► FILTERED             └──────────────────────────┘

A pending trajectory waits in the pool (`pool.py`), or until the store has dropped its tokens (`discards.py`).
Invariant: every admitted group ends as TRAINED, FILTERED or FAILED exactly once. Otherwise prompts would be lost or trained on
twice, and the reward curve would not show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tailrace.contracts import Candidate, Launch, Pool, Purpose, TrajectoryRef, TrajectoryView
from tailrace.pipeline.controller.pool import Waiting
from tailrace.pipeline.controller.predicted_lengths import PredictedLengths, PromptLengths
from tailrace.pipeline.controller.states import Counts, GroupPhase, GroupState, Phase, TrajectoryState
from tailrace.pipeline.errors import ControllerError

# Looked up once, since access to an enum's members is slow and every trajectory passes each of these.
_PENDING: Final = Phase.PENDING
_RUNNING: Final = Phase.RUNNING
_IN_ENVIRONMENT: Final = Phase.IN_ENVIRONMENT
_DONE: Final = Phase.DONE
_SCORED: Final = Phase.SCORED
_TRAIN: Final = Purpose.TRAIN
_EVAL: Final = Purpose.EVAL


@dataclass(slots=True)
class Ledger:
    """All trajectories and groups that are not settled. A trained group is settled once its checkpoint is durable.

    A trajectory has a state from the start of its group on. Before that all trajectories of a group are alike, and `unstarted`
    has the group of each. `moving` has the replica that each moves away from. `discarding` are those that start again once
    the store has dropped their tokens. `consumed` lists the groups of each version that training makes or made. `unfinished`
    counts trajectories by the version whose weights they still need.

    Args:
        mixes_versions: whether a trajectory may continue under newer weights.
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
    predictions: PredictedLengths = field(default_factory=PredictedLengths)
    prompts: PromptLengths = field(default_factory=PromptLengths)
    generating: int = 0
    counts: Counts = field(default_factory=Counts)

    # ---- the pool -------------------------------------------------------------------------------------------------

    @property
    def levels(self) -> Pool:
        """The pool by version: oldest first, trajectories without a version last."""
        return self.waiting.levels()

    @property
    def pooled(self) -> int:
        """Number of trajectories in the pool."""
        return len(self.waiting)

    def admit(self, launch: Launch) -> int:
        """Open a group with pending trajectories. Returns its number."""
        group = self.counts.admitted
        members = tuple([f"{group}.{sample}" for sample in range(launch.samples)])
        self.groups[group] = GroupState(
            group, members, launch.prompt, launch.needed, round=launch.round, kind=launch.kind, draw=launch.draw
        )
        self.waiting.unstarted.add(
            group, members, *self.predictions.of(launch.prompt, 0), self.prompts.of(launch.prompt)
        )
        self.unstarted.update(dict.fromkeys(members, group))
        self.generating += 1
        self.counts.admits(launch.prompt)
        return group

    def add(self, evaluation: TrajectoryState) -> None:
        """Add an evaluation's trajectory, which is routed at once."""
        self.trajectories[evaluation.id] = evaluation

    def get(self, trajectory: str) -> TrajectoryState | None:
        """The trajectory, or None when it is settled or unknown."""
        state = self.trajectories.get(trajectory)
        if state is None and (group := self.waits_with(trajectory)) is not None:
            return next((fresh for fresh in group.fresh() if fresh.id == trajectory), None)
        return state

    def waits_with(self, trajectory: str) -> GroupState | None:
        """The group with which a trajectory waits to start; None if it has started, or is settled or unknown."""
        group = self.unstarted.get(trajectory)
        return None if group is None else self.groups[group]

    def started(self) -> dict[int, tuple[int, bool]]:
        """Groups that count for admission, each with its version and whether it is complete."""
        return {
            group.index: (group.version, group.phase is GroupPhase.BUFFERED)
            for group in self.groups.values()
            if group.version is not None and group.phase in (GroupPhase.GENERATING, GroupPhase.BUFFERED)
        }

    def start(self, group: GroupState, version: int) -> None:
        """Fix the version of a group whose first trajectory is about to be routed. Call `pool_rest` afterwards."""
        group.version, group.predicted = version, self.predictions.tokens.get(group.prompt)
        self.counts.unpredicted += len(group.members) * (group.predicted is None)
        self._leaves_unstarted(group)
        group.states = group.fresh()
        group.rewards = [None] * len(group.members)
        self.trajectories.update(zip(group.members, group.states, strict=True))

    def pool_rest(self, group: GroupState) -> None:
        """Put the trajectories of a group that has just started and were not routed with it into the pool, one by one."""
        for state in group.states:
            if state.phase is _PENDING and state.id not in self.waiting:
                self._pend(state)

    def exact(self, state: TrajectoryState) -> bool:
        """Whether a trajectory can continue only under its own version."""
        return state.version is not None and (state.purpose is _EVAL or not self.mixes_versions)

    # ---- trajectories ---------------------------------------------------------------------------------------------

    def routed(self, states: Iterable[TrajectoryState], replica: str, version: int) -> list[TrajectoryRef]:
        """Route trajectories to a replica. Returns their references for the command."""
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
                        self.counts.turns_lost += state.keeps(0)
                if state.purpose is _EVAL:
                    self.stranded_evaluations.pop(name, None)
            state.phase, state.replica, state.version = _RUNNING, replica, at
            draw = self.groups[state.group].draw if state.purpose is _TRAIN else None
            refs.append(
                TrajectoryRef(
                    name, state.group, state.sample, state.purpose, state.mode, state.tokens, state.prompt, draw
                )
            )
        if news:
            self.unfinished[version] = self.unfinished.get(version, 0) + news
        return refs

    def view(self, state: TrajectoryState, generated: int = 0) -> TrajectoryView:
        """The policies' view of a running trajectory, which has probably `generated` tokens more than are known."""
        mixes = self.mixes_versions and state.purpose is _TRAIN
        version = self.groups[state.group].version if mixes else state.version
        known = state.generated + generated
        predicted = (None, None) if state.purpose is _EVAL else self.predictions.of(state.prompt, known)
        prompt = self.prompts.of(state.prompt)
        return TrajectoryView(state.id, state.group, version, prompt + state.tokens, not mixes, *predicted, prompt)

    def returned(self, trajectory: str, tokens: int | None) -> TrajectoryState:
        """Make a trajectory that left its replica unfinished pending again."""
        state = self.trajectories[trajectory]
        state.phase, state.replica = _PENDING, None
        if tokens is not None:
            state.tokens = tokens
        self._pend(state)
        return state

    def turn_ended(self, state: TrajectoryState, tokens: int) -> None:
        """Note that a turn of a running trajectory is complete, and that its environment has to answer."""
        state.phase, state.replica = _IN_ENVIRONMENT, None
        self.counts.turns += state.ends_turn(tokens)

    def discarding_begins(self, state: TrajectoryState) -> None:
        """Take a pending trajectory out of the pool until its tokens are dropped."""
        self.waiting.remove(state.id)
        self.stranded_evaluations.pop(state.id, None)
        self.discarding[state.id] = None

    def restarted(self, state: TrajectoryState, version: int | None = None, tokens: int = 0) -> None:
        """Set a pending trajectory's version and number of tokens; by default it has none."""
        self.waiting.remove(state.id)
        self.discarding.pop(state.id, None)
        if state.phase is not _DONE and state.phase is not _SCORED:
            self._needed(state, -1)
        self.counts.turns_lost += state.keeps(tokens)
        state.phase, state.replica, state.home, state.version = _PENDING, None, None, version
        self._needed(state, 1)
        self._pend(state)

    def bind(self, trajectory: TrajectoryState, destination: str | None) -> None:
        """Set the replica that a trajectory moves to; None cancels the move."""
        trajectory.destination = destination
        if destination is None:
            self.moving.pop(trajectory.id, None)
        else:
            self.moving[trajectory.id] = trajectory.replica or ""

    def finished(self, state: TrajectoryState, tokens: int, trainer_version: int) -> bool:
        """Mark a trajectory as complete. Returns False if it was complete already."""
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
        """Store the reward of a finished trajectory. Returns its group; None for an evaluation."""
        state.phase, state.reward = _SCORED, reward
        if state.purpose is _EVAL:
            return None
        group = self.groups[state.group]
        group.scored += 1
        group.rewards[state.sample] = reward
        group.tokens += state.tokens
        group.observed += state.observed
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

    def late(self, group: GroupState) -> list[TrajectoryState]:
        """A group's trajectories that it does not need, since as many as it needs have finished generating."""
        if len(group.members) <= group.needed:
            return []
        late = [state for state in group.states if state.phase is not _DONE and state.phase is not _SCORED]
        return late if len(group.states) - len(late) >= group.needed else []

    def trim(self, group: GroupState, late: Sequence[TrajectoryState]) -> None:
        """Forget trajectories that a group does not need."""
        gone = {state.id for state in late}
        group.states = [state for state in group.states if state.id not in gone]
        group.members = tuple([state.id for state in group.states])
        for state in late:
            self._forget(state)
        self.counts.surplus_trajectories += len(late)

    def complete(self, group: GroupState) -> Candidate:
        """Complete a group that has all its rewards. Returns its candidate."""
        rewards = tuple([reward for reward in group.rewards if reward is not None])
        group.candidate = Candidate(group.index, min(group.versions()), self.counts.completed, rewards, group.tokens)
        self._buffer(group)
        self.counts.completed += 1
        self.generating -= 1
        return group.candidate

    def candidates(self) -> list[Candidate]:
        """Complete groups, in completion order."""
        found = [self.groups[index].candidate for index in self.buffered]
        return [candidate for candidate in found if candidate is not None]

    def consume(self, groups: Sequence[int], version: int) -> None:
        """Give groups to the batch that makes `version`, at once or in parts."""
        for index in groups:
            group = self.groups[index]
            if group.phase is not GroupPhase.BUFFERED:
                raise ControllerError(f"group {index} is {group.phase}, expected {GroupPhase.BUFFERED}")
            del self.buffered[index]
            group.phase, group.consumed_for = GroupPhase.TRAINING, version
        self.consumed.setdefault(version, []).extend(groups)

    def batch(self, version: int) -> list[TrajectoryState]:
        """All trajectories consumed for a version so far, accumulated parts first."""
        return [state for index in self.consumed.get(version, ()) for state in self.groups[index].states]

    def trained(self, version: int) -> None:
        """Mark the groups of the step that made `version` as trained."""
        for index in self.consumed.get(version, ()):
            group = self.groups[index]
            group.phase = GroupPhase.TRAINED
            self.counts.trains(group, 1)

    def roll_back(self, durable: int) -> None:
        """Put groups that were consumed for versions newer than a checkpoint back into the buffer."""
        undone = [version for version in self.consumed if version > durable]
        back = [self.groups[index] for version in undone for index in self.consumed.pop(version)]
        for group in sorted(back, key=_order):
            if group.phase is GroupPhase.TRAINED:
                self.counts.trains(group, -1)
            self._buffer(group)

    def settle(self, version: int) -> list[int]:
        """Settle the groups trained on up to a version, behind which the trainer can no longer fall back. Returns them."""
        ended: list[int] = []
        for made in [made for made in self.consumed if made <= version]:
            settled = [index for index in self.consumed[made] if self.groups[index].phase is GroupPhase.TRAINED]
            if len(settled) == len(self.consumed[made]):
                del self.consumed[made]
                for index in settled:
                    self.predictions.done(self.groups[index].prompt)
                    self.prompts.done(self.groups[index].prompt)
                    for name in self.groups.pop(index).members:
                        del self.trajectories[name]
                ended += settled
        return ended

    def drop(self, index: int, phase: GroupPhase, reason: str) -> list[TrajectoryState]:
        """End a group as FILTERED, FAILED or DEFERRED. Returns its trajectories, which are forgotten."""
        group = self.groups.pop(index)
        if group.phase is GroupPhase.GENERATING:
            self.generating -= 1
        self.buffered.pop(index, None)
        self.counts.ends(group, phase, reason)
        if phase is not GroupPhase.DEFERRED:
            self.predictions.done(group.prompt)
            self.prompts.done(group.prompt)
        if group.version is None:
            self._leaves_unstarted(group)
            return group.fresh()
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
            return  # its group waits as a whole
        exact = state.version is not None and not self.mixes_versions
        if exact:
            assert state.version is not None
            version = state.version
        predicted = self.predictions.of(state.prompt, state.generated)
        prompt = self.prompts.of(state.prompt)
        view = TrajectoryView(state.id, state.group, version, prompt + state.tokens, exact, *predicted, prompt)
        self.waiting.add(version, view)

    def _needed(self, state: TrajectoryState, count: int) -> None:
        """Count that an unfinished trajectory needs its version (count 1) or no longer does (-1)."""
        if state.version is not None and (not self.mixes_versions or state.purpose is _EVAL):
            self.unfinished[state.version] = self.unfinished.get(state.version, 0) + count

    def _buffer(self, group: GroupState) -> None:
        group.phase, group.consumed_for = GroupPhase.BUFFERED, 0
        self.buffered[group.index] = None

    def _forget(self, state: TrajectoryState) -> None:
        del self.trajectories[state.id]
        if state.phase is not _DONE and state.phase is not _SCORED:
            self.waiting.remove(state.id)
            self.stranded_evaluations.pop(state.id, None)
            self.discarding.pop(state.id, None)
            self._needed(state, -1)
        if state.destination is not None:
            self.moving.pop(state.id, None)


def _order(group: GroupState) -> int:
    assert group.candidate is not None
    return group.candidate.order
