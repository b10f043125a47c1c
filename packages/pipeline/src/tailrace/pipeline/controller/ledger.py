"""The ledger: one owner for the life of every trajectory and group.

    PENDING ──route──► RUNNING ──finish──► DONE ──score──► SCORED
       ▲                  │ interrupt, replica down
       └──────────────────┘

    GENERATING ──all scored──► BUFFERED ──step issued──► TRAINING ──stepped──► TRAINED
         │                        ▲ │ expired                │ trainer down
         └─► FAILED               │ └─► FILTERED             │
                                  └──────────────────────────┘

Invariant (design, 2): every admitted group ends as TRAINED, FILTERED or FAILED exactly once. If it did not hold, prompts
would be lost or trained on twice, and nobody would see it in the reward curve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.contracts import Candidate, Purpose, TrajectoryRef
from tailrace.pipeline.errors import ControllerError


class Phase(StrEnum):
    """Where a trajectory is."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    SCORED = "scored"


class GroupPhase(StrEnum):
    """Where a group is."""

    GENERATING = "generating"
    BUFFERED = "buffered"
    TRAINING = "training"
    TRAINED = "trained"
    FILTERED = "filtered"
    FAILED = "failed"


@dataclass(slots=True)
class TrajectoryState:
    """One trajectory.

    `version` is the version of the tokens that exist, and so of the replica that must continue it; None while there are
    none. `destination` is set while it moves.
    """

    id: str
    group: int
    sample: int
    purpose: Purpose
    mode: str
    phase: Phase = Phase.PENDING
    version: int | None = None
    replica: str | None = None
    destination: str | None = None
    tokens: int = 0
    reward: float | None = None
    completed_at: int = 0
    scoring_attempts: int = 0

    def ref(self) -> TrajectoryRef:
        """What a `Route` carries."""
        return TrajectoryRef(self.id, self.group, self.sample, self.purpose, self.mode, self.tokens)


@dataclass(slots=True)
class GroupState:
    """One prompt's samples."""

    index: int
    members: list[str]
    phase: GroupPhase = GroupPhase.GENERATING
    scored: int = 0
    order: int = -1
    consumed_for: int = 0


@dataclass(slots=True)
class Counts:
    """Totals over the run, in groups unless named otherwise."""

    admitted: int = 0
    trained: int = 0
    filtered: int = 0
    failed: int = 0
    completed: int = 0
    trained_trajectories: int = 0
    trained_tokens: int = 0
    regenerated_trajectories: int = 0


@dataclass(slots=True)
class Ledger:
    """All trajectories and groups that are not yet settled. Settled groups leave it once their checkpoint is durable."""

    trajectories: dict[str, TrajectoryState] = field(default_factory=dict)
    groups: dict[int, GroupState] = field(default_factory=dict)
    pending: dict[str, None] = field(default_factory=dict)
    buffered: dict[int, None] = field(default_factory=dict)
    generating: int = 0
    counts: Counts = field(default_factory=Counts)

    def admit(self, group: int, samples: int) -> list[str]:
        """Open a group; its trajectories are pending."""
        if group in self.groups:
            raise ControllerError(f"group {group} was admitted twice")
        members = [f"{group}.{sample}" for sample in range(samples)]
        self.groups[group] = GroupState(group, members)
        for sample, name in enumerate(members):
            self.add(TrajectoryState(name, group, sample, Purpose.TRAIN, ""))
        self.generating += 1
        self.counts.admitted += 1
        return members

    def add(self, trajectory: TrajectoryState) -> None:
        """Add a pending trajectory."""
        self.trajectories[trajectory.id] = trajectory
        self.pending[trajectory.id] = None

    def get(self, trajectory: str) -> TrajectoryState | None:
        """The trajectory, or None when it is settled or unknown."""
        return self.trajectories.get(trajectory)

    def routed(self, trajectory: str, replica: str, version: int) -> TrajectoryState:
        """A replica takes a pending trajectory."""
        state = self.trajectories[trajectory]
        self.pending.pop(trajectory, None)
        if state.version is not None and state.version != version:
            self.counts.regenerated_trajectories += 1
            state.tokens = 0
        state.phase, state.replica, state.version = Phase.RUNNING, replica, version
        return state

    def returned(self, trajectory: str, tokens: int | None) -> TrajectoryState:
        """A trajectory has left its replica unfinished; it is pending, bound to the version of its tokens."""
        state = self.trajectories[trajectory]
        state.phase, state.replica = Phase.PENDING, None
        if tokens is not None:
            state.tokens = tokens
        self.pending[trajectory] = None
        return state

    def finished(self, trajectory: str, tokens: int, trainer_version: int) -> TrajectoryState | None:
        """A trajectory is complete; None when that was known already."""
        state = self.trajectories.get(trajectory)
        if state is None or state.phase in (Phase.DONE, Phase.SCORED):
            return None
        self.pending.pop(trajectory, None)
        state.phase, state.replica = Phase.DONE, None
        state.tokens, state.completed_at = tokens, trainer_version
        return state

    def scored(self, trajectory: str, reward: float, needed: int) -> TrajectoryState | None:
        """A trajectory has its reward; its group may be complete by it. None when that was known already."""
        state = self.trajectories.get(trajectory)
        if state is None or state.phase is not Phase.DONE:
            return None
        state.phase, state.reward = Phase.SCORED, reward
        if state.purpose is Purpose.TRAIN:
            group = self.groups[state.group]
            group.scored += 1
            if group.phase is GroupPhase.GENERATING and group.scored >= needed:
                self._buffer(group)
                group.order = self.counts.completed
                self.counts.completed += 1
                self.generating -= 1
        return state

    def settle_eval(self, ids: Iterable[str]) -> None:
        """Forget evaluation trajectories."""
        for name in ids:
            self.trajectories.pop(name, None)
            self.pending.pop(name, None)

    def candidates(self) -> list[Candidate]:
        """Complete groups, in completion order."""
        return [self._candidate(self.groups[index]) for index in self.buffered]

    def consume(self, groups: Sequence[int], version: int) -> None:
        """A step that makes `version` takes these groups."""
        for index in groups:
            group = self.groups[index]
            if group.phase is not GroupPhase.BUFFERED:
                raise ControllerError(f"group {index} is {group.phase}, expected {GroupPhase.BUFFERED}")
            del self.buffered[index]
            group.phase, group.consumed_for = GroupPhase.TRAINING, version

    def trained(self, version: int) -> None:
        """The step that made `version` is done."""
        for group in self.groups.values():
            if group.phase is GroupPhase.TRAINING and group.consumed_for == version:
                group.phase = GroupPhase.TRAINED
                self.counts.trained += 1
                self.counts.trained_trajectories += len(group.members)
                self.counts.trained_tokens += sum(self.trajectories[name].tokens for name in group.members)

    def roll_back(self, durable: int) -> None:
        """Groups that were consumed for versions newer than a checkpoint go back to the buffer."""
        back = [
            group
            for group in self.groups.values()
            if group.phase in (GroupPhase.TRAINING, GroupPhase.TRAINED) and group.consumed_for > durable
        ]
        for group in sorted(back, key=lambda group: group.order):
            if group.phase is GroupPhase.TRAINED:
                self.counts.trained -= 1
                self.counts.trained_trajectories -= len(group.members)
                self.counts.trained_tokens -= sum(self.trajectories[name].tokens for name in group.members)
            self._buffer(group)

    def durable(self, version: int) -> None:
        """A checkpoint survives: what it trained on can never come back."""
        settled = [
            group
            for group in self.groups.values()
            if group.phase is GroupPhase.TRAINED and group.consumed_for <= version
        ]
        for group in settled:
            self._forget(group)

    def drop(self, index: int, phase: GroupPhase) -> list[str]:
        """End a group as FILTERED or FAILED. Returns the members that may still be generating."""
        group = self.groups[index]
        running = [name for name in group.members if self.trajectories[name].phase in (Phase.PENDING, Phase.RUNNING)]
        if group.phase is GroupPhase.GENERATING:
            self.generating -= 1
        self.buffered.pop(index, None)
        if phase is GroupPhase.FILTERED:
            self.counts.filtered += 1
        else:
            self.counts.failed += 1
        self._forget(group)
        return running

    def oldest_version(self, index: int) -> int:
        """The oldest version in a complete group."""
        versions = [self.trajectories[name].version for name in self.groups[index].members]
        return min(version for version in versions if version is not None)

    def versions_needed(self) -> set[int]:
        """Versions whose weights an unfinished trajectory still needs (LAM-9)."""
        return {
            state.version
            for state in self.trajectories.values()
            if state.version is not None and state.phase in (Phase.PENDING, Phase.RUNNING)
        }

    def _buffer(self, group: GroupState) -> None:
        group.phase, group.consumed_for = GroupPhase.BUFFERED, 0
        self.buffered[group.index] = None

    def _forget(self, group: GroupState) -> None:
        for name in group.members:
            self.trajectories.pop(name, None)
            self.pending.pop(name, None)
        self.groups.pop(group.index, None)

    def _candidate(self, group: GroupState) -> Candidate:
        members = [self.trajectories[name] for name in group.members]
        return Candidate(
            key=group.index,
            version=self.oldest_version(group.index),
            order=group.order,
            rewards=tuple(member.reward if member.reward is not None else 0.0 for member in members),
            tokens=sum(member.tokens for member in members),
        )
