"""Axis provisioning: scale-down (RollPacker, algorithm 1 and section 4.4)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import (
    FleetView,
    Health,
    LendReplica,
    Reason,
    ReplicaView,
    ReturnReplica,
    StartReplica,
    Why,
)
from tailrace.repack.errors import LoadError


@dataclass(frozen=True, slots=True)
class ScaleDown:
    """A fixed number of replicas; as a round ends, half of their devices go to the trainer, which adds gradients meanwhile.

    It looks at the milestones of a round, and lends once in it: half of the trainer's cells with all replicas on their devices,
    those with the fewest trajectories. Cells on the devices of one replica are lent together or not at all, so it may be less
    than half, or none. The trajectories move to the others, which compute their tokens' keys and values anew.
    It does so only if all replicas are up, all trajectories, at the length expected of each, fit into the KV cache that
    remains, and there is a place in a decode batch for each. All devices return when the round ends, or when a replica that
    was kept goes down.

    Args:
        count: number of replicas.
        max_tokens: most tokens of a response.
        first, last, every: milestones as shares of the samples that the round keeps: `first`, `first` + `every`, ... `last`.

    Raises:
        LoadError: an option is out of its range.
    """

    count: int = 2
    max_tokens: int = 16_384
    first: float = 0.2
    last: float = 0.5
    every: float = 0.05

    def __post_init__(self) -> None:
        if self.count < 1 or self.max_tokens < 1:
            raise LoadError(f"found count={self.count} and max_tokens={self.max_tokens}, expected at least 1 of each")
        if not 0 < self.first <= self.last <= 1 or not 0 < self.every <= 1:
            raise LoadError(
                f"found first={self.first}, last={self.last} and every={self.every}, expected 0 < first <= last <= 1 and "
                "0 < every <= 1"
            )

    @property
    def lends(self) -> bool:
        """Yes: it lends devices to cells of the trainer, which must share them."""
        return True

    @property
    def milestones(self) -> Sequence[float]:
        """The shares at which it looks."""
        steps = math.floor((self.last - self.first) / self.every + 1e-9)
        return tuple(round(self.first + step * self.every, 9) for step in range(steps + 1))

    def plan(self, view: FleetView) -> Sequence[StartReplica | LendReplica | ReturnReplica]:
        """Start the replicas; lend half of the devices, or take them back."""
        replicas = [member for member in view.of("replica") if member.health is not Health.STOPPING]
        if not replicas:
            return [StartReplica()] * self.count
        now = view.round
        share = 0.0 if now is None else now.generated / max(1, now.samples)
        if view.lent:
            down = any(member.health is not Health.UP and member.id not in view.lent for member in replicas)
            over = share < self.first
            return [ReturnReplica(name) for name in view.lent] if over or down else ()
        if now is None or not self.first <= share < self.last + self.every:
            return ()
        if any(member.health is not Health.UP for member in replicas):
            return ()
        return self._lend(view, share)

    def _lend(self, view: FleetView, share: float) -> Sequence[LendReplica]:
        if not all(load.cells and _may_leave(load) for load in view.loads):
            return ()
        chosen = half_of_cells(view.loads)
        freed = [load for load in view.loads if chosen.issuperset(load.cells)]
        kept = [load for load in view.loads if chosen.isdisjoint(load.cells)]
        if (
            not freed or len({load.version for load in view.loads}) > 1
        ):  # a trajectory moves to a replica of its own version
            return ()
        peak = projected_tokens(view.loads, view.lengths, self.max_tokens)
        room = sum(load.kv_capacity_tokens for load in kept)
        places = sum(load.capacity - load.in_flight for load in kept)
        if peak > room or sum(load.in_flight for load in freed) > places:
            return ()
        numbers = {"share": share, "peak_tokens": peak, "room_tokens": float(room)}
        return [LendReplica(load.replica, Reason(Why.POLICY, numbers=numbers)) for load in freed]


def _may_leave(load: ReplicaView) -> bool:
    return load.fresh and load.version is not None and not load.pulling and not load.pinned


def half_of_cells(loads: Sequence[ReplicaView]) -> set[int]:
    """Cells of the trainer, at most half of those on the devices of replicas, such that no replica stands on one of them and on
    another cell too: in order of the trajectories there, the fewest first, each that still fits into the half.

    Args:
        loads: the replicas, each on at least one cell.
    """
    together: list[set[int]] = []  # cells that replicas join, and so change hands together
    for load in loads:
        joined = set(load.cells).union(*(part for part in together if not part.isdisjoint(load.cells)))
        together = [part for part in together if part.isdisjoint(joined)] + [joined]

    def work(part: set[int]) -> tuple[int, int]:
        return sum(load.in_flight for load in loads if part.issuperset(load.cells)), min(part)

    half, chosen = sum(map(len, together)) // 2, set[int]()
    for part in sorted(together, key=work):
        if len(chosen) + len(part) <= half:
            chosen |= part
    return chosen


def projected_tokens(loads: Sequence[ReplicaView], lengths: Sequence[int], max_tokens: int) -> float:
    """Tokens in KV caches if every trajectory in flight had its whole length at once: an upper bound of the peak.

    The length that is expected of a trajectory is the mean of the lengths above what it has by now, of those that finished
    before; `max_tokens` if none was longer. A snapshot has the sum of a replica's tokens, so each counts as the mean.

    Args:
        loads: the replicas; infinite if one does not say what its cache holds.
        lengths: response tokens of trajectories that finished, in any order.
        max_tokens: most tokens of a response.
    """
    ordered, total = sorted(lengths), 0.0
    for load in loads:
        if not load.in_flight:
            continue
        if not load.kv_capacity_tokens:
            return math.inf
        so_far = load.kv * load.kv_capacity_tokens / load.in_flight
        longer = ordered[bisect_right(ordered, so_far) :]
        total += load.in_flight * (sum(longer) / len(longer) if longer else max(so_far, float(max_tokens)))
    return total
