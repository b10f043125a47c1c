"""The eight axes (design, section 2): what a policy sees and what it answers. All of it pure.

A policy is a frozen dataclass registered in the entry-point group of its axis. It keeps no state, reads no clock and draws
no random number: everything that it depends on is in its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the run is. Counts are groups.

    Args:
        version: the trainer's version.
        published: the newest version that replicas may pull.
        admitted: started so far.
        generating: admitted and not complete.
        buffered: complete and not consumed.
        consumed: trained on.
        dropped: filtered or failed.
        batch_groups: groups in one batch.
        last_version: the version at which the run ends.
    """

    version: int
    published: int
    admitted: int
    generating: int
    buffered: int
    consumed: int
    dropped: int
    batch_groups: int
    last_version: int


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """What policies know of a replica that is up.

    Args:
        version: the version that it serves, None before its first pull.
        pulling: a pull is under way.
        in_flight: trajectories that were routed to it and have not come back.
        capacity: trajectories that one batch of it holds.
        kv: share of the KV cache in use, 0 to 1, at the last snapshot.
        kv_before: the same at the previous periodic sample.
        kv_peak: the highest since it was last given work.
        waiting: trajectories queued inside the engine.
        fresh: a snapshot has arrived since it was last given work.
    """

    replica: str
    version: int | None
    pulling: bool
    in_flight: int
    capacity: int
    kv: float
    kv_before: float
    kv_peak: float
    waiting: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class GroupLaunch:
    """Start a group.

    Args:
        group: index in the prompt stream.
        samples: trajectories to launch.
    """

    group: int
    samples: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A complete group in the experience buffer, as a sampler sees it.

    Args:
        key: the group.
        version: the oldest version in it.
        order: completion order, from 0.
        rewards: one per trajectory.
        tokens: response tokens over all trajectories.
    """

    key: int
    version: int
    order: int
    rewards: tuple[float, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Move:
    """Move every trajectory of a replica to another that serves the same version."""

    source: str
    destination: str


class RecoveryAction(StrEnum):
    """What becomes of a member that is down."""

    RESTART = "restart"
    EVICT = "evict"
    FAIL = "fail"


class AdmissionPolicy(Protocol):
    """Axis admission: may a group start at a version, and when is a batch trainable."""

    def may_start(self, version: int, progress: Progress) -> bool:
        """Whether one more group may start on a replica that serves `version`."""
        ...

    def ready(self, progress: Progress) -> bool:
        """Whether the trainer may consume a batch now."""
        ...

    def expired(self, version: int, progress: Progress) -> bool:
        """Whether a complete group whose oldest version is `version` must not be trained on any more."""
        ...


class BatchingPolicy(Protocol):
    """Axis batching: which prompts and how many samples are launched."""

    def launch(self, progress: Progress, room: int) -> Sequence[GroupLaunch]:
        """Groups to launch into room for so many trajectories, in order; at most what fits."""
        ...

    def needed(self) -> int:
        """Scored trajectories that complete a group."""
        ...


class RoutingPolicy(Protocol):
    """Axis routing: which replica runs it."""

    def choose(self, candidates: Sequence[ReplicaView], order: int) -> str:
        """The replica for the next trajectories.

        Args:
            candidates: replicas that may take them; never empty.
            order: routing decisions made before this one.
        """
        ...


class SyncPolicy(Protocol):
    """Axis sync: when a replica pulls weights, and when it may be given work."""

    def pulls(self, replicas: Sequence[ReplicaView], progress: Progress) -> Sequence[str]:
        """Replicas that pull the newest published version now."""
        ...

    def accepts(self, replica: ReplicaView, progress: Progress) -> bool:
        """Whether a replica may be given new groups now."""
        ...


class RelocationPolicy(Protocol):
    """Axis relocation: which running trajectories move."""

    def due(self, now_s: float, last_s: float, stepped: bool) -> bool:
        """Whether to plan now.

        Args:
            now_s: time.
            last_s: time of the last plan.
            stepped: the trainer has just updated the weights.
        """
        ...

    def plan(self, replicas: Sequence[ReplicaView]) -> Sequence[Move]:
        """Moves; no replica is both a source and a destination."""
        ...


class TrainingPolicy(Protocol):
    """Axis training: when gradients are computed and applied."""

    def split(self, groups: Sequence[int]) -> Sequence[Sequence[int]]:
        """The optimizer steps of one batch, as groups in order."""
        ...


class ProvisioningPolicy(Protocol):
    """Axis provisioning: who gets which devices."""

    def replicas(self) -> int:
        """Rollout replicas wanted."""
        ...


class RecoveryPolicy(Protocol):
    """Axis recovery: what restarts when a role fails."""

    def on_down(self, role: str, member: str, failures: int) -> RecoveryAction:
        """What to do with a member that went down for the `failures`-th time."""
        ...


class Sampler(Protocol):
    """Which complete groups the trainer consumes. Entry-point group ``tailrace.sampler``."""

    def pick(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """Keys of exactly `count` candidates, in the order in which they are trained on."""
        ...
