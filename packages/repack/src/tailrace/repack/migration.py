"""Migration back to the pool (StaleFlow, Algorithm 5), from replicas with long queues or far higher throughput than others.

Evicted trajectories go back to the pool, and the routing policy places them again. Where the paper leaves a choice:
* excess is evicted from the tail of the waiting queue, the latest routed first;
* if the least throughput is 0, the ratio is not defined. Then the fastest replica is emptied only if it has more than one
  trajectory, half of them would be faster on the idle replica, and the pool has none that may be routed, since the idle
  replica could be given those instead. Small decode batches all take as long: routing would put their trajectories back,
  whose keys and values would be computed anew in every period;
* plans are a period apart, and only replicas whose snapshot shows every earlier command are compared, so that a load is not
  acted on twice;
* a trajectory that no other replica may continue stays where it is;
* a replica's throughput is the one that it has once its trajectories come back from their environments: the paper has none, and
  a replica all of whose trajectories wait for tools would look idle, and the others would be emptied for it again and again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from tailrace.contracts import Cycle, Evict, Reason, RelocationPolicy, ReplicaView, TrajectoryView, Tried, Why
from tailrace.repack.errors import LoadError
from tailrace.repack.gains import kv_tokens, planned_with
from tailrace.repack.routing import may_run_at
from tailrace.repack.throughput import Costed


@dataclass(frozen=True, slots=True)
class Migration(Costed, RelocationPolicy):
    """Evict trajectories from long queues and from replicas that are far ahead (StaleFlow, section 5.3). Plugin ``migration``.

    Args:
        k1, k2, k3, k4: see `Costed`.
        phi_wait: most trajectories that may wait inside an engine.
        phi_throughput: largest allowed ratio of the highest throughput to the lowest.
        period_s: seconds between two plans.

    Raises:
        LoadError: a value is out of its range.
    """

    phi_wait: Annotated[int, Tried((0, 1, 3))] = 3
    phi_throughput: Annotated[float, Tried((1.0, 1.5, 5.0))] = 5.0
    period_s: Annotated[float, Tried((0.2, 1.0, 4.0))] = 1.0

    def __post_init__(self) -> None:
        Costed.__post_init__(self)
        if self.phi_wait < 0:
            raise LoadError(f"found phi_wait={self.phi_wait!r}, expected at least 0")
        if not self.phi_throughput >= 1:
            raise LoadError(f"found phi_throughput={self.phi_throughput!r}, expected at least 1")
        if not (self.period_s > 0 and math.isfinite(self.period_s)):
            raise LoadError(f"found period_s={self.period_s!r}, expected seconds above 0")

    def plans_tokens(self) -> bool:
        """The cost of a step grows with the tokens in the KV cache, those of prompts among them."""
        return True

    def due(self, now_s: float, last_s: float, updated: bool) -> bool:  # noqa: ARG002 - the protocol's arguments
        """Whether `period_s` has passed."""
        return now_s - last_s >= self.period_s

    def plan(self, cycle: Cycle) -> Sequence[Evict]:
        """Algorithm 5 over the replicas whose load is known: fresh, serving, not pulling and not pinned."""
        views = sorted((view for view in cycle.replicas if planned_with(view)), key=lambda view: view.replica)
        takers = _Takers(views)
        evicted = {view.replica: found for view in views if (found := self._excess(view, takers))}
        evictions = [
            Evict(
                view.replica,
                evicted[view.replica],
                Reason(Why.WAITING_TOO_LONG, "", {"waiting": view.waiting, "limit": self.phi_wait}),
            )
            for view in views
            if view.replica in evicted
        ]
        ahead = self._ahead(views, cycle)
        if ahead is None:
            return evictions
        view, reason = ahead
        gone = set(evicted.get(view.replica, ()))
        rest = tuple(
            name
            for name, trajectory in view.trajectories.items()
            if name not in gone and takers.may_take(trajectory, view)
        )
        if rest:
            evictions = [eviction for eviction in evictions if eviction.replica != view.replica]
            evictions.append(Evict(view.replica, (*evicted.get(view.replica, ()), *rest), reason))
        return evictions

    def _excess(self, view: ReplicaView, takers: _Takers) -> tuple[str, ...]:
        """Case 1: trajectories that wait beyond `phi_wait`, the latest routed first."""
        excess = view.waiting - self.phi_wait
        found: list[str] = []
        if excess > 0:
            for name in reversed(list(view.trajectories)):
                if not view.trajectories[name].exact or takers.may_take(view.trajectories[name], view):
                    found.append(name)
                    if len(found) == excess:
                        break
        return tuple(found)

    def _ahead(self, views: Sequence[ReplicaView], cycle: Cycle) -> tuple[ReplicaView, Reason] | None:
        """Case 2: the replica of the highest throughput, if its ratio to the lowest is too large."""
        if len(views) < 2:
            return None
        rates = [self._owed(view) for view in views]
        high, low = max(rates), min(rates)
        ahead, behind = views[rates.index(high)], views[rates.index(low)]
        if low > 0:
            if high / low <= self.phi_throughput:
                return None
        elif not ahead.running or len(ahead.trajectories) < 2 or not self._gains(ahead) or _any_routable(views, cycle):
            return None
        return ahead, Reason(Why.LOW_THROUGHPUT, behind.replica, {"here": high, "there": low})

    def _owed(self, view: ReplicaView) -> float:
        """A replica's throughput with what environments answer for it, each as long as those that run, as far as all run."""
        running = view.running
        owed = min(running + view.in_environment, max(running, view.places))
        tokens = kv_tokens(view)
        return self.model.throughput(round(tokens / running * owed) if running else 0, owed)

    def _gains(self, view: ReplicaView) -> bool:
        """Whether two replicas with half of this one's trajectories each would have a higher throughput together."""
        half, throughput = view.running // 2, self.model.throughput(kv_tokens(view), view.running)
        shares = ((kv_tokens(view) * count / view.running, count) for count in (half, view.running - half))
        return sum(self.model.throughput(tokens, count) for tokens, count in shares) > throughput * (1 + 1e-9)


def _any_routable(views: Sequence[ReplicaView], cycle: Cycle) -> bool:
    kinds = {(view.version, view.open) for view in views}
    return any(version is not None and may_run_at(version, cycle, opened=opened) for version, opened in kinds)


class _Takers:
    """Which versions other replicas serve."""

    def __init__(self, views: Sequence[ReplicaView]) -> None:
        self._counts: dict[int, int] = {}
        for view in views:
            if view.version is not None:
                self._counts[view.version] = self._counts.get(view.version, 0) + 1
        newest = sorted(view.version for view in views if view.version is not None)
        self._newest = newest[-2:]

    def may_take(self, trajectory: TrajectoryView, holder: ReplicaView) -> bool:
        """Whether a replica other than its holder may continue a trajectory."""
        version = trajectory.version
        if version is None:
            return True
        if trajectory.exact:
            return self._counts.get(version, 0) > (holder.version == version)
        others = self._newest[:-1] if holder.version == self._newest[-1] else self._newest
        return bool(others) and others[-1] >= version
