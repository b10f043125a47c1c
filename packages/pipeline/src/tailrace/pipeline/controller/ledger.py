"""The ledger: one owner for the life of every trajectory and group.

    PENDING ──route──► RUNNING ──finish──► DONE ──score──► SCORED
       ▲                  │ interrupt, replica down
       └──────────────────┘

    GENERATING ──all scored──► BUFFERED ──step issued──► TRAINING ──stepped──► TRAINED
         │                        ▲ │ expired                │ trainer down
         ├─► FAILED               │ └─► FILTERED             │
         └─► FILTERED             └──────────────────────────┘

A pending trajectory waits in the pool (StaleFlow's trajectory server, section 5.1), ordered by the version that it is bound to:
that of its tokens where a trajectory has one version, that of its group where versions may be mixed.

Invariant (design, 2): every admitted group ends as TRAINED, FILTERED or FAILED exactly once. If it did not hold, prompts
would be lost or trained on twice, and nobody would see it in the reward curve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.contracts import Candidate, Purpose, TrajectoryRef, TrajectoryView
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

    `version` is the oldest version of the tokens that exist; None while there are none. `destination` is set while it moves.
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
    """One prompt's samples. `version` is that of its first routing, which admission counts with (SF-11)."""

    index: int
    members: list[str]
    version: int | None = None
    phase: GroupPhase = GroupPhase.GENERATING
    scored: int = 0
    order: int = -1
    consumed_for: int = 0


@dataclass(slots=True)
class Counts:
    """Totals over the run, in groups unless named otherwise. `filtered_because` splits `filtered` by reason."""

    admitted: int = 0
    trained: int = 0
    filtered: int = 0
    failed: int = 0
    completed: int = 0
    trained_trajectories: int = 0
    trained_tokens: int = 0
    regenerated_trajectories: int = 0
    resumed_on_newer: int = 0
    surplus_trajectories: int = 0
    filtered_because: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Ledger:
    """All trajectories and groups that are not yet settled. Settled groups leave it once their checkpoint is durable.

    Args:
        mixes_versions: a trajectory may go on under newer weights.
    """

    mixes_versions: bool = False
    trajectories: dict[str, TrajectoryState] = field(default_factory=dict)
    groups: dict[int, GroupState] = field(default_factory=dict)
    levels: dict[int | None, dict[str, TrajectoryView]] = field(default_factory=dict)
    level_of: dict[str, int | None] = field(default_factory=dict)
    moving: dict[str, None] = field(default_factory=dict)
    stranded_evaluations: dict[str, None] = field(default_factory=dict)
    buffered: dict[int, None] = field(default_factory=dict)
    generating: int = 0
    counts: Counts = field(default_factory=Counts)

    def admit(self, group: int, samples: int) -> None:
        """Open a group; its trajectories are pending."""
        if group in self.groups:
            raise ControllerError(f"group {group} was admitted twice")
        members = [f"{group}.{sample}" for sample in range(samples)]
        self.groups[group] = GroupState(group, members)
        for sample, name in enumerate(members):
            self.trajectories[name] = TrajectoryState(name, group, sample, Purpose.TRAIN, "")
            self._pend(self.trajectories[name])
        self.generating += 1
        self.counts.admitted += 1

    def add(self, evaluation: TrajectoryState) -> None:
        """Add an evaluation's trajectory, which is routed at once."""
        self.trajectories[evaluation.id] = evaluation

    def get(self, trajectory: str) -> TrajectoryState | None:
        """The trajectory, or None when it is settled or unknown."""
        return self.trajectories.get(trajectory)

    def pool(self) -> dict[int | None, dict[str, TrajectoryView]]:
        """What waits for a replica, the oldest version first, what has none last."""
        return {level: self.levels[level] for level in sorted(self.levels, key=lambda v: (v is None, v))}

    def waiting(self, trajectory: str) -> TrajectoryView | None:
        """How a trajectory stands in the pool; None if it is not there."""
        return self.levels[self.level_of[trajectory]][trajectory] if trajectory in self.level_of else None

    @property
    def pooled(self) -> int:
        """Trajectories in the pool."""
        return len(self.level_of)

    def started(self) -> dict[int, tuple[int, bool]]:
        """Groups that count for admission, with their version and whether they are complete."""
        return {
            group.index: (group.version, group.phase is GroupPhase.BUFFERED)
            for group in self.groups.values()
            if group.version is not None and group.phase in (GroupPhase.GENERATING, GroupPhase.BUFFERED)
        }

    def start(self, index: int, version: int) -> None:
        """The first trajectory of a group is about to be routed: the group's version is fixed."""
        group = self.groups[index]
        group.version = version
        for name in group.members:
            if self._unpend(name):
                self._pend(self.trajectories[name])

    def routed(self, trajectory: str, replica: str, version: int) -> TrajectoryState:
        """A replica takes a trajectory."""
        state = self.trajectories[trajectory]
        self._unpend(trajectory)
        self.stranded_evaluations.pop(trajectory, None)
        if state.version is not None and state.version != version:
            if self.mixes_versions and state.purpose is Purpose.TRAIN:
                self.counts.resumed_on_newer += 1
                version = min(version, state.version)
            else:
                self.counts.regenerated_trajectories += 1
                state.tokens = 0
        state.phase, state.replica, state.version = Phase.RUNNING, replica, version
        return state

    def returned(self, trajectory: str, tokens: int | None) -> TrajectoryState:
        """A trajectory has left its replica unfinished and is pending again."""
        state = self.trajectories[trajectory]
        state.phase, state.replica = Phase.PENDING, None
        if tokens is not None:
            state.tokens = tokens
        self._pend(state)
        return state

    def restarted(self, state: TrajectoryState, version: int | None = None, tokens: int = 0) -> None:
        """What exists of a pending trajectory is this, by default nothing."""
        self._unpend(state.id)
        state.phase, state.replica, state.version, state.tokens = Phase.PENDING, None, version, tokens
        self._pend(state)

    def bind(self, trajectory: TrajectoryState, destination: str | None) -> None:
        """A trajectory moves to a replica, or does not any more."""
        trajectory.destination = destination
        if destination is None:
            self.moving.pop(trajectory.id, None)
        else:
            self.moving[trajectory.id] = None

    def finished(self, trajectory: str, tokens: int, trainer_version: int) -> TrajectoryState | None:
        """A trajectory is complete; None when that was known already."""
        state = self.trajectories.get(trajectory)
        if state is None or state.phase in (Phase.DONE, Phase.SCORED):
            return None
        self._unpend(trajectory)
        self.stranded_evaluations.pop(trajectory, None)
        state.phase, state.replica = Phase.DONE, None
        state.tokens, state.completed_at = tokens, trainer_version
        return state

    def scored(self, trajectory: str, reward: float) -> TrajectoryState | None:
        """A trajectory has its reward. None when that was known already."""
        state = self.trajectories.get(trajectory)
        if state is None or state.phase is not Phase.DONE:
            return None
        state.phase, state.reward = Phase.SCORED, reward
        if state.purpose is Purpose.TRAIN:
            self.groups[state.group].scored += 1
        return state

    def complete(self, index: int) -> list[str]:
        """A group has all rewards that it needs. Returns its surplus members, which are forgotten."""
        group = self.groups[index]
        surplus = [name for name in group.members if self.trajectories[name].phase is not Phase.SCORED]
        for name in surplus:
            self._unpend(name)
            del self.trajectories[name]
        group.members = [name for name in group.members if name in self.trajectories]
        self._buffer(group)
        group.order = self.counts.completed
        self.counts.completed += 1
        self.counts.surplus_trajectories += len(surplus)
        self.generating -= 1
        return surplus

    def rewards(self, index: int) -> list[float]:
        """The rewards of a group so far, in order of its samples."""
        members = (self.trajectories[name] for name in self.groups[index].members)
        return [member.reward for member in members if member.reward is not None]

    def settle_eval(self, ids: Iterable[str]) -> None:
        """Forget evaluation trajectories."""
        for name in ids:
            self.trajectories.pop(name, None)
            self.stranded_evaluations.pop(name, None)

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

    def drop(self, index: int, phase: GroupPhase, reason: str) -> None:
        """End a group as FILTERED or FAILED."""
        group = self.groups[index]
        if group.phase is GroupPhase.GENERATING:
            self.generating -= 1
        self.buffered.pop(index, None)
        if phase is GroupPhase.FILTERED:
            self.counts.filtered += 1
            self.counts.filtered_because[reason] = self.counts.filtered_because.get(reason, 0) + 1
        else:
            self.counts.failed += 1
        self._forget(group)

    def oldest_version(self, index: int) -> int:
        """The oldest version in a complete group."""
        versions = [self.trajectories[name].version for name in self.groups[index].members]
        return min(version for version in versions if version is not None)

    def versions_needed(self) -> set[int]:
        """Versions whose weights an unfinished trajectory still needs (LAM-9)."""
        return {
            state.version
            for state in self.trajectories.values()
            if state.version is not None
            and state.phase in (Phase.PENDING, Phase.RUNNING)
            and not (self.mixes_versions and state.purpose is Purpose.TRAIN)
        }

    def _pend(self, state: TrajectoryState) -> None:
        if state.purpose is Purpose.EVAL:
            self.stranded_evaluations[state.id] = None
            return
        group = self.groups[state.group].version
        exact = state.version is not None and not self.mixes_versions
        version = state.version if exact else group
        self.levels.setdefault(version, {})[state.id] = TrajectoryView(
            state.id, state.group, version, state.tokens, exact
        )
        self.level_of[state.id] = version

    def _unpend(self, trajectory: str) -> bool:
        if trajectory not in self.level_of:
            return False
        level = self.level_of.pop(trajectory)
        del self.levels[level][trajectory]
        if not self.levels[level]:
            del self.levels[level]
        return True

    def _buffer(self, group: GroupState) -> None:
        group.phase, group.consumed_for = GroupPhase.BUFFERED, 0
        self.buffered[group.index] = None

    def _forget(self, group: GroupState) -> None:
        for name in group.members:
            self._unpend(name)
            self.moving.pop(name, None)
            del self.trajectories[name]
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
