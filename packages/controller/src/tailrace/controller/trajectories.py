"""The states of every trajectory and group that is not settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.contracts import Candidate, Purpose


class Phase(StrEnum):
    """State of a trajectory; see `ledger.py`."""

    PENDING = "pending"
    RUNNING = "running"
    IN_ENVIRONMENT = "in environment"
    DONE = "done"
    SCORED = "scored"


class GroupPhase(StrEnum):
    """State of a group; see `ledger.py`."""

    GENERATING = "generating"
    BUFFERED = "buffered"
    TRAINING = "training"
    TRAINED = "trained"
    FILTERED = "filtered"
    FAILED = "failed"
    DEFERRED = "deferred"


OPEN = (GroupPhase.GENERATING, GroupPhase.BUFFERED)
"""Phases of a group that is neither in a batch nor dropped."""


@dataclass(frozen=True, slots=True)
class Left:
    """Tokens that somebody left in the prefix cache of a replica.

    Args:
        tokens: how many, from the beginning of the prompt on.
        emptied: `ReplicaState.emptied` then. They are gone once it is more.
        until: the `ReplicaState.filled` from which on they may have made room for others.
    """

    tokens: int
    emptied: int
    until: float


@dataclass(slots=True)
class TrajectoryState:
    """One trajectory.

    `version` is the oldest version of its tokens; None while it has none. `destination` is set while it moves. `since` is
    `Assigned.generated` of its replica when it was routed there. `home` is the replica to which it goes back from its
    environment. `turns` are the response tokens at the end of each of its turns, `answered` how many of them an environment
    has answered, and `observed` the tokens of those answers. `relocated_at` is how many tokens it was known to have when a
    relocation policy last took it from a replica; -1: none has. `truncated` says that a limit ended it. `cached` says what it
    left in the prefix cache of each replica. `under` is the version that it was routed to last: whose weights draw its tokens.
    """

    id: str
    group: int
    sample: int
    purpose: Purpose
    mode: str
    prompt: int
    phase: Phase = Phase.PENDING
    version: int | None = None
    under: int | None = None
    replica: str | None = None
    destination: str | None = None
    tokens: int = 0
    reward: float | None = None
    completed_at: int = 0
    scoring_attempts: int = 0
    since: float = 0.0
    home: str | None = None
    turns: tuple[int, ...] = ()
    answered: int = 0
    observed: int = 0
    relocated_at: int = -1
    truncated: bool = False
    cached: dict[str, Left] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether its last token is there."""
        return self.phase is Phase.DONE or self.phase is Phase.SCORED

    @property
    def generated(self) -> int:
        """Its tokens without what environments answered: the length that a ranker predicts."""
        return self.tokens - self.observed

    def may_end_turn(self, tokens: int) -> bool:
        """Whether a turn may end with so many tokens: a new one, or the last one if nobody has answered it."""
        ended = self.turns[-1] if self.turns else 0
        return tokens > ended or (tokens == ended and self.answered < len(self.turns))

    def ends_turn(self, tokens: int) -> bool:
        """Note that a turn ended. Returns whether that was not known."""
        self.tokens = tokens
        known = bool(self.turns) and self.turns[-1] == tokens
        if not known:
            self.answered = len(self.turns)
            self.turns = (*self.turns, tokens)
        return not known

    def is_answered(self, tokens: int) -> None:
        """Note that an environment has answered the last turn: the trajectory has so many tokens with that."""
        self.observed += tokens - self.tokens
        self.tokens, self.answered = tokens, len(self.turns)

    def keeps(self, tokens: int) -> int:
        """Note that it has only so many tokens left. Returns the number of turns that had ended and are lost with the rest.

        If the cut falls on a turn's end, the environment's answer to that turn is lost. The next replica reports the end again.
        """
        self.tokens, before = tokens, len(self.turns)
        self.turns = tuple([end for end in self.turns if end <= tokens])
        at_end = bool(self.turns) and self.turns[-1] == tokens
        self.answered = min(self.answered, len(self.turns) - at_end)
        self.observed = min(self.observed, tokens)
        return before - len(self.turns)


@dataclass(slots=True)
class GroupState:
    """One attempt at a prompt. `version` is the version of its first routing, which admission counts.

    `states` are its trajectories in order of their samples, once it has started. `scored` counts those with a reward;
    `rewards` has their rewards by sample, `tokens` their response tokens, `observed` those of them that environments answered,
    and `newer` counts those of versions newer than the group's. `predicted` are the response tokens that were predicted for
    each of its trajectories when it started, None if nothing was, and `ranker` says by which one (`Outcome`). `kept` says that
    it was complete and kept before the task started over. `candidate` is the complete group for a sampler. `round`, `kind` and
    `draw` are those of its `Launch`. `cached` says in which prefix caches its trajectories left their prompt.
    """

    index: int
    members: Sequence[str]
    prompt: int
    needed: int
    version: int | None = None
    phase: GroupPhase = GroupPhase.GENERATING
    states: list[TrajectoryState] = field(default_factory=list)
    scored: int = 0
    rewards: list[float | None] = field(default_factory=list)
    tokens: int = 0
    observed: int = 0
    newer: dict[int, int] | None = None
    candidate: Candidate | None = None
    consumed_for: int = 0
    round: int | None = None
    kind: str = ""
    draw: int | None = None
    predicted: float | None = None
    ranker: int = 0
    kept: bool = False
    cached: dict[str, Left] = field(default_factory=dict)

    def fresh(self) -> list[TrajectoryState]:
        """Its trajectories, as none of them has started."""
        return [
            TrajectoryState(name, self.index, sample, Purpose.TRAIN, "", self.prompt)
            for sample, name in enumerate(self.members)
        ]

    def versions(self) -> dict[int, int]:
        """Number of its scored trajectories by version, oldest version first."""
        assert self.version is not None
        newer = self.newer or {}
        own = self.scored - sum(newer.values())
        return ({self.version: own} if own else {}) | {version: newer[version] for version in sorted(newer)}


@dataclass(slots=True)
class Counts:
    """Totals over the run, in groups unless named otherwise.

    `deferred` counts groups that ended while their prompt comes again later, as another group; `queued` has the prompts of
    those that have not come again yet. `delayed` counts groups that were dropped because training waited for them.
    `unpredicted` counts trajectories that started before a length was predicted for them.
    `turns` counts turns that ended, `turns_lost` those of them whose tokens have to be generated again. `sessions_restored`,
    `sessions_replayed` and `sessions_lost` count sessions of environments that went down, by what became of them.
    `trained_tokens` are those that were generated. `turns_of_each` counts training trajectories that were complete, by the
    number of their turns.
    `filtered_because` and `failed_because` split `filtered` and `failed` by reason. `failed_words` has what was said of the
    first group that failed for each reason.
    """

    admitted: int = 0
    trained: int = 0
    filtered: int = 0
    failed: int = 0
    deferred: int = 0
    delayed: int = 0
    completed: int = 0
    trained_trajectories: int = 0
    trained_tokens: int = 0
    regenerated_trajectories: int = 0
    resumed_on_newer: int = 0
    surplus_trajectories: int = 0
    unpredicted: int = 0
    turns: int = 0
    turns_lost: int = 0
    sessions_restored: int = 0
    sessions_replayed: int = 0
    sessions_lost: int = 0
    filtered_because: dict[str, int] = field(default_factory=dict)
    failed_because: dict[str, int] = field(default_factory=dict)
    failed_words: dict[str, str] = field(default_factory=dict)
    queued: dict[int, None] = field(default_factory=dict)
    turns_of_each: dict[int, int] = field(default_factory=dict)

    def admits(self, prompt: int) -> None:
        """Count a group of a prompt that is opened."""
        self.admitted += 1
        self.queued.pop(prompt, None)

    def defers(self, prompt: int) -> None:
        """Count a group that ended while its prompt comes again."""
        self.deferred += 1
        self.queued[prompt] = None

    def ends(self, group: GroupState, phase: GroupPhase, reason: str) -> None:
        """Count a group that ended untrained: as DEFERRED, FILTERED or FAILED."""
        if phase is GroupPhase.DEFERRED:
            self.defers(group.prompt)
        elif phase is GroupPhase.FILTERED:
            self.filtered += 1
            self.filtered_because[reason] = self.filtered_because.get(reason, 0) + 1
        elif phase is GroupPhase.FAILED:
            self.failed += 1
            self.failed_because[reason] = self.failed_because.get(reason, 0) + 1

    def trains(self, group: GroupState, count: int) -> None:
        """Count that a group was trained on (count 1), or that this is undone (-1)."""
        self.trained += count
        self.trained_trajectories += count * len(group.members)
        self.trained_tokens += count * (group.tokens - group.observed)

    @property
    def prompts(self) -> int:
        """Prompts that were admitted: groups without those whose prompt comes again."""
        return self.admitted - self.deferred
