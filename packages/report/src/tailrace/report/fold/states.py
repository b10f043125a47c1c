"""Trajectories, groups, members and faults as a log shows them: what `History` is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.contracts import Health, TrajectoryRef, Why

ANEW = frozenset({Why.VERSION_GONE, Why.EVALUATION, Why.SESSION_LOST, Why.TASK_RESTART})
"""Reasons of an `Abort` after which its trajectories begin anew."""
AGAIN = frozenset({Why.NOT_SCORED_YET, Why.DEFERRED, Why.DELAYED_AGAIN})
"""Reasons of an `Abort` of a group whose prompt comes again."""
DELAYED = frozenset({Why.DELAYED, Why.DELAYED_AGAIN})
"""Reasons of an `Abort` of a group that training waited for too long."""
AGAIN_IN_ROUNDS = frozenset({Why.EXPIRED, Why.OVER})
"""The same, where batching launches rounds."""
RELEASING = frozenset({Why.MOVED, Why.STOPPING, Why.RESIZING})
"""Reasons of an `Interrupt` that empties its replica."""


@dataclass(slots=True)
class Trajectory:
    """One trajectory that is not settled.

    `version` is the oldest that produced a token of it, `replica` where it runs, `completed_at` the trainer's version when its
    last token was there. While it waits between two replicas it is among the `pending` of its history. `observed` are those of
    its tokens that environments answered, `turns` the answers that it went on behind, `turn_end` how many tokens it had when
    its last turn ended, which is `answered` or not. `truncated` says that a limit ended it.
    """

    ref: TrajectoryRef
    version: int | None
    replica: str | None = None
    tokens: int = 0
    finished: bool = False
    completed_at: int = 0
    reward: float | None = None
    observed: int = 0
    turns: int = 0
    turn_end: int = 0
    answered: bool = False
    truncated: bool = False

    @property
    def generated(self) -> int:
        """Tokens that replicas generated."""
        return self.tokens - self.observed


class Stage(StrEnum):
    """Where a group is."""

    GENERATING = "generating"
    BUFFERED = "buffered"
    TRAINING = "training"
    TRAINED = "trained"


@dataclass(slots=True)
class Group:
    """One attempt at a prompt. `version` is the one that it is consumed for."""

    index: int
    members: dict[str, Trajectory] = field(default_factory=dict)
    scored: int = 0
    stage: Stage = Stage.GENERATING
    version: int | None = None


@dataclass(slots=True)
class PastMember:
    """A member of a role.

    Of replicas: `holds` are trajectories that were routed to it and have not come back, of which `evaluating` answer an
    evaluation; `releasing` says that it is being emptied, `lent` which cells of the trainer have its devices.
    """

    role: str
    id: str
    health: Health = Health.STARTING
    version: int | None = None
    pulling: int | None = None
    holds: dict[str, Trajectory] = field(default_factory=dict)
    evaluating: int = 0
    releasing: bool = False
    lent: tuple[int, ...] = ()

    def lose(self) -> None:
        """Forget what it alone knew."""
        self.holds, self.evaluating, self.releasing = {}, 0, False
        self.version = self.pulling = None
        self.lent = ()


@dataclass(slots=True)
class Outage:
    """A member that went down, and when it was up again."""

    at_s: float
    role: str
    member: str
    reason: str
    up_s: float | None = None
