"""Axis relocation: which running trajectories move. Entry-point group ``tailrace.relocation``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from tailrace.contracts import Cycle, Facts, Move, RelocationPolicy, ReplicaView, Tried
from tailrace.repack.consolidation import ReplicaLoad, consolidate
from tailrace.repack.errors import LoadError


def peak_kv(kv: float, left: Sequence[float | None], capacity_tokens: int) -> float:
    """The highest share of a replica's KV cache in use until its trajectories have ended, if no other joins them.

    Each grows by a token in every step until it ends and frees what it holds. So the peak is where one of them ends: with the
    k-th shortest of m at an end, m - k + 1 hold what they have now and as many tokens more as that one had left. How much each
    has now is not known apart, so all are taken to have as much. One of which nothing is predicted stays as it is.

    Args:
        kv: share in use now, 0 to 1.
        left: tokens that each trajectory is still expected to generate, E[L - t | L > t]; None if that is not predicted.
        capacity_tokens: tokens that the cache can hold; 0 if unknown, and then the share in use now is the answer.
    """
    if not capacity_tokens or not left:
        return kv
    each = kv * capacity_tokens / len(left)
    known = sorted([tokens for tokens in left if tokens is not None])
    others = each * (len(left) - len(known))
    ends = [(len(known) - at) * (each + tokens) for at, tokens in enumerate(known)]
    return max(kv, (others + max(ends, default=0.0)) / capacity_tokens)


ASSUMED_BATCH = 256
"""B of `best-fit` while nothing is known of the costs of decoding."""
NEGLIGIBLE = 0.1
"""The most by which B may lengthen a step, as a share of one trajectory's."""


@dataclass(frozen=True, slots=True)
class NoRelocation(RelocationPolicy):
    """Trajectories end where they began. Plugin ``none``."""

    def due(self, now_s: float, last_s: float, updated: bool) -> bool:  # noqa: ARG002 - the protocol's arguments
        """Never."""
        return False

    def plan(self, cycle: Cycle) -> Sequence[Move]:  # noqa: ARG002 - the protocol's arguments
        """No moves."""
        return ()


@dataclass(frozen=True, slots=True)
class BestFit(RelocationPolicy):
    """Consolidate the long tail of each weight version onto few replicas (Laminar section 5). Plugin ``best-fit``.

    Args:
        kv_threshold: share of the KV cache that may be in use after a move (C_max).
        roofline_batch: most trajectories on one replica after a move (B). None: as many as decode "with only a negligible
            increase in latency" (section 5.2), by the cost model: a step takes at most a tenth longer than that of one; or
            256 while there is none. A replica's own capacity may lower it.
        headroom: share of the KV cache to keep free for the growth of moved trajectories, 0 to 0.2.
        period_s: seconds between two plans; there is also one after every update of the trainer, as soon as its weights can
            be pulled.
        literal: choose candidates by the rule as printed in Algorithm 1.
        projected: plan with the highest KV usage until a replica's trajectories have ended, by what is predicted to be left of
            them, instead of with what is in use.
        k2, k3, k4: of the cost model (`Costed`); None: there is none.

    Raises:
        LoadError: a value is out of its range.
    """

    kv_threshold: Annotated[float, Tried((0.5, 0.9, 0.99))] = 0.99
    roofline_batch: Annotated[int | None, Tried((4, 16, 64, None))] = None
    headroom: Annotated[float, Tried((0.0, 0.1))] = 0.0
    period_s: Annotated[float, Tried((0.5, 2.0, 5.0))] = 5.0
    literal: bool = False
    projected: bool = False
    k2: float | None = None
    k3: float | None = None
    k4: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.kv_threshold <= 1:
            raise LoadError(f"found kv_threshold={self.kv_threshold!r}, expected a share above 0 and at most 1")
        if not 0 <= self.headroom < self.kv_threshold:
            raise LoadError(
                f"found headroom={self.headroom!r}, expected at least 0 and less than kv_threshold={self.kv_threshold!r}"
            )
        if self.roofline_batch is not None and self.roofline_batch < 1:
            raise LoadError(f"found roofline_batch={self.roofline_batch!r}, expected at least 1")
        if not (self.period_s > 0 and math.isfinite(self.period_s)):
            raise LoadError(f"found period_s={self.period_s!r}, expected seconds above 0")

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """The coefficients that the run knows."""
        costs = facts.costs
        return {} if costs is None else {"k2": costs.k2, "k3": costs.k3, "k4": costs.k4}

    @property
    def batch(self) -> int:
        """B: as given, or by the cost model, or else 256.

        Not k2 / k3: a fit tells the reading of weights (k2) from the overhead (k4) only where it saw batches on both sides of
        the turning point, and their sum everywhere.
        """
        if self.roofline_batch is not None:
            return self.roofline_batch
        if self.k2 is None or self.k3 is None or self.k4 is None or not self.k3:
            return ASSUMED_BATCH
        alone = max(self.k2, self.k3)  # of a step of one trajectory, beside the overhead
        return max(1, math.floor((alone + NEGLIGIBLE * (alone + self.k4)) / self.k3))

    def needs_predictions(self) -> bool:
        """Where it is told to plan with them."""
        return self.projected

    def learns_costs(self) -> bool:
        """The run fits what `with_costs` takes."""
        return True

    def with_costs(self, k1: float, k2: float, k3: float, k4: float) -> Self:
        """The same policy with coefficients that were fitted in the run."""
        del k1
        return dataclasses.replace(self, k2=k2, k3=k3, k4=k4)

    def due(self, now_s: float, last_s: float, updated: bool) -> bool:
        """Whether `period_s` has passed or the weights of an update can just be pulled (Laminar section 5.1)."""
        return updated or now_s - last_s >= self.period_s

    def plan(self, cycle: Cycle) -> Sequence[Move]:
        """Algorithm 1 over the replicas whose load is known and settled; N_reqs is a view's `in_flight`.

        Trajectories in environments count among these requests, since they come back, and not in the use of the KV cache. So a
        replica whose trajectories are all in environments is the cheapest to release.

        A replica takes no part while it pulls weights, has no version, has nothing in flight, has a queue inside its engine,
        was given work since its last snapshot, or is pinned.
        """
        settled = [
            view
            for view in cycle.replicas
            if view.fresh and not view.pulling and not view.pinned and view.in_flight > 0 and view.waiting == 0
        ]
        loads = [
            ReplicaLoad(
                view.replica,
                view.version,
                view.kv,
                view.kv_before,
                view.in_flight,
                kv_peak=view.kv_peak,
                waiting=view.waiting,
                ramp_down=view.kv < view.kv_peak,
                kv_projected=_projected(view) if self.projected else None,
            )
            for view in settled
            if view.version is not None
            and view.kv < self.kv_threshold
            and view.kv < (view.kv_before if self.literal else view.kv_peak)  # drops most views early
        ]
        if len(loads) < 2:
            return []
        return consolidate(
            loads,
            kv_threshold=self.kv_threshold,
            roofline_batch=max(1, min(self.batch, *(view.capacity for view in settled))),
            headroom=self.headroom,
            literal=self.literal,
        )


def _projected(view: ReplicaView) -> float:
    """The highest KV usage of a replica until what runs has ended."""
    return peak_kv(view.kv, [trajectory.left for trajectory in view.trajectories.values()], view.kv_capacity_tokens)
