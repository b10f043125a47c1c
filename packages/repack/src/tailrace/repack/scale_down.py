"""Axis provisioning: scale-down (RollPacker, algorithm 1 and section 4.4)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tailrace.contracts import (
    Facts,
    FleetView,
    Health,
    LendReplica,
    ProvisioningPolicy,
    Reason,
    ReplicaView,
    ReturnReplica,
    StartReplica,
    Why,
)
from tailrace.repack.errors import LoadError

_ROUNDS = 8  # of a kind, by which the length of one is expected


@dataclass(frozen=True, slots=True)
class ScaleDown(ProvisioningPolicy):
    """A fixed number of replicas. Before a round ends, half of their devices go to the trainer, which adds gradients on them.

    At each milestone of a round it decides whether to lend, unless something is lent. It lends half of the trainer's cells:
    those with the fewest trajectories, each with all replicas on its devices. Cells on the devices of one replica are lent
    together or not at all, so it may lend fewer than half, or none. The trajectories move to the other replicas, which compute
    the keys and values of their tokens anew.
    It never lends the cells of a replica beside a judge, which owes the round's last scores; there are others for the half.
    It lends only if all replicas are up, if all trajectories at their expected lengths fit into the KV caches that remain, if
    each has a place in a decode batch there, and if the loan brings more than it costs (`seconds_of_loan`), as far as the last
    `remembers` steps tell. All devices return when the round ends, or when a replica that was kept goes down.

    Args:
        count: number of replicas.
        max_tokens: most tokens of a response.
        first, last, every: milestones as shares of the samples that the round keeps: `first`, `first` + `every`, ... `last`.
        remembers: steps for which what a loan took counts. After so many without a loan one is made again, which shows whether
            it still costs as much. 0: all loans are made, as in the paper, which charges none.

    Raises:
        LoadError: an option is out of its range.
    """

    count: int = 2
    max_tokens: int = 16_384
    first: float = 0.2
    last: float = 0.5
    every: float = 0.05
    remembers: int = 8

    def __post_init__(self) -> None:
        if self.count < 1 or self.max_tokens < 1:
            raise LoadError(f"found count={self.count} and max_tokens={self.max_tokens}, expected at least 1 of each")
        if not 0 < self.first <= self.last <= 1 or not 0 < self.every <= 1:
            raise LoadError(
                f"found first={self.first}, last={self.last} and every={self.every}, expected 0 < first <= last <= 1 and "
                "0 < every <= 1"
            )
        if self.remembers < 0:
            raise LoadError(f"found remembers={self.remembers}, expected at least 0 steps")

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """The run's replicas, and its longest response."""
        return {"count": facts.replicas, "max_tokens": facts.max_tokens}

    def lends_devices(self) -> bool:
        """It lends devices to cells of the trainer, which must share them."""
        return True

    def round_milestones(self) -> Sequence[float]:
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
        known = self._seconds(view, len(chosen) / len({cell for load in view.loads for cell in load.cells}))
        if known is not None:
            brings_s, costs_s = known
            if brings_s <= costs_s:
                return ()
            numbers |= {"brings_s": brings_s, "costs_s": costs_s}
        return [LendReplica(load.replica, Reason(Why.POLICY, numbers=numbers)) for load in freed]

    def _seconds(self, view: FleetView, share: float) -> tuple[float, float] | None:
        """What a loan of a share of the cells would bring and cost; None while nobody knows, as in the longest round so far."""
        if not self.remembers or view.round is None or not view.gradients_s:
            return None
        recent = [loan for loan in view.loans if view.progress.version - loan.version <= self.remembers]
        alike = [past.generation_s for past in view.rounds if past.kind == view.round.kind][-_ROUNDS:]
        longer = [lasted_s for lasted_s in alike if lasted_s > view.round_s]
        if not recent or not longer:
            return None
        left_s = fmean(longer) - view.round_s
        lend_s, return_s = fmean(loan.lend_s for loan in recent), fmean(loan.return_s for loan in recent)
        return seconds_of_loan(left_s, share, view.gradients_s, lend_s, return_s)


def seconds_of_loan(
    left_s: float, share: float, gradients_s: float, lend_s: float, return_s: float
) -> tuple[float, float]:
    """Seconds by which a loan ends the training of a round earlier, and by which it delays the next round.

    From when the replicas have left, cells compute a share of the gradients beside generation; at most all of them. The devices
    return after the round, when the next one waits for them. That the others generate more slowly meanwhile is not counted.

    Args:
        left_s: until the round ends.
        share: of the trainer's cells that are lent devices.
        gradients_s: that the gradients of a batch take all cells.
        lend_s: until replicas have left their devices.
        return_s: until they have them again.
    """
    return min(gradients_s, share * max(0.0, left_s - lend_s)), return_s


def _may_leave(load: ReplicaView) -> bool:
    return load.fresh and load.version is not None and not load.pulling and not load.pinned


def half_of_cells(loads: Sequence[ReplicaView]) -> set[int]:
    """At most half of the cells that are on the devices of replicas. No replica stands on a chosen cell and on another one too.

    Cells that replicas join are chosen together. Those with the fewest trajectories come first; what does not fit into the
    half is left out, and so are the cells of a replica that is `kept`.

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
    kept = {cell for load in loads if load.kept for cell in load.cells}
    for part in sorted(filter(kept.isdisjoint, together), key=work):
        if len(chosen) + len(part) <= half:
            chosen |= part
    return chosen


def projected_tokens(loads: Sequence[ReplicaView], lengths: Sequence[int], max_tokens: int) -> float:
    """Tokens in KV caches if all trajectories in flight had their whole lengths at the same time, which few ever do.

    The expected length of a trajectory is the mean of those finished lengths that are above what it has by now; `max_tokens` if
    none is. A snapshot has only the sum of a replica's tokens, so each of its trajectories counts as having their mean. The
    sum includes prompts and `lengths` do not, so the result is too low where prompts are long beside responses.

    Args:
        loads: the replicas.
        lengths: response tokens of trajectories that finished, in any order.
        max_tokens: most tokens of a response.

    Returns:
        The tokens; infinite if a replica with work does not say what its cache holds.
    """
    ordered, total = sorted(lengths), 0.0
    for load in loads:
        if not load.in_flight:
            continue
        if not load.kv_capacity_tokens:
            return math.inf
        so_far = load.kv * load.kv_capacity_tokens / load.held if load.held else 0.0
        longer = ordered[bisect_right(ordered, so_far) :]
        total += load.in_flight * (sum(longer) / len(longer) if longer else max(so_far, float(max_tokens)))
    return total
