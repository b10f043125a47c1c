"""Routing by marginal throughput gain (StaleFlow, Algorithm 3): a waterfall over versions. Plugin ``marginal-throughput``.

The pool is a multi-level queue, the stalest first. For the trajectory at its head, the versions that it may run at are tried
from the oldest on: if the replica of that version that gains most gains enough, the trajectory goes there. If no version has
such a replica, everything behind the head waits too. Where the paper leaves a choice:
* a gain is enough if it is at least mu times the ideal gain;
* a group gets its version when its first trajectory is placed, which is counted on a copy of admission; its other
  trajectories then need that version or a newer one;
* in the paper somebody always serves a version at which the head may run. Here those who do may be lent or down, and a
  trajectory may have to end at the version it began with (`exact`). If nobody can, the trajectory is skipped, since no
  completion could ever unblock the queue.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from tailrace.contracts import Cycle, Placement, Reason, RoutingPolicy, TentativeAdmission, TrajectoryView, Tried, Why
from tailrace.repack.errors import LoadError
from tailrace.repack.gains import GainIndex, planned_with
from tailrace.repack.routing import queues
from tailrace.repack.throughput import Costed

Queues = Iterable[tuple[int | None, Iterable[TrajectoryView]]]
# The trajectory, the index of its replica in the order of names, the gain and the least sufficient gain.
Poured = tuple[TrajectoryView, int, float, float]


@dataclass(frozen=True, slots=True)
class MarginalThroughput(Costed, RoutingPolicy):
    """A trajectory goes where it adds most throughput, if it adds enough. Plugin ``marginal-throughput``.

    The coefficients of the cost model come from `ThroughputModel.fit`. The paper's (Table 4, Qwen3-30B-A3B on an H20) are
    7.28e-8, 1.72e-3, 1.25e-4 and 1.07e-2.

    Args:
        k1, k2, k3, k4: see `Costed`.
        mu: share of the ideal gain that is enough.
        prompt_tokens: tokens assumed for a prompt that is not measured (`TrajectoryView.prompt_tokens`).
        predicted: plan one that has no tokens yet with those that are predicted for it, where the paper plans with none.

    Raises:
        LoadError: a value is out of its range.
    """

    mu: Annotated[float, Tried((0.05, 0.3, 0.8))] = 0.3
    prompt_tokens: int = 0
    predicted: bool = False

    def __post_init__(self) -> None:
        Costed.__post_init__(self)
        if not 0 < self.mu <= 1:
            raise LoadError(f"found mu={self.mu!r}, expected a share above 0 and at most 1")
        if self.prompt_tokens < 0:
            raise LoadError(f"found prompt_tokens={self.prompt_tokens!r}, expected at least 0")

    def plans_tokens(self) -> bool:
        """The cost of a step grows with the tokens in the KV cache, those of prompts among them."""
        return True

    def needs_predictions(self) -> bool:
        """Where it is told to plan with them."""
        return self.predicted

    def route(self, cycle: Cycle) -> Sequence[Placement]:
        """Algorithm 3 over the replicas whose load is known: fresh, serving, not pulling and not pinned."""
        index = self.index(cycle)
        names = [view.replica for view in index.views]
        waiting = ((version, queue.values()) for version, queue in queues(cycle))
        why = Why.CHOSEN  # looked up once: an enumeration's members are slow to reach
        return [
            Placement(view.trajectory, names[chosen], Reason(why, "", {"gain": gain, "least": least}))
            for view, chosen, gain, least in self.pour(index, waiting, cycle.admits)
        ]

    def index(self, cycle: Cycle) -> GainIndex:
        """A search index of the replicas that are planned with."""
        views = sorted((view for view in cycle.replicas if planned_with(view)), key=lambda view: view.replica)
        return GainIndex(self.model, views)

    def lengths(self, index: GainIndex) -> Callable[[TrajectoryView], int]:
        """A function that says with how many tokens a trajectory is planned: its prompt and what it has of its response.

        A prediction counts up to what the smallest KV cache holds: no replica would ever have room for more, and all that is
        behind it would wait.
        """
        assumed, predicted = self.prompt_tokens, self.predicted
        rooms = [view.kv_capacity_tokens for view in index.views if view.kv_capacity_tokens] if predicted else []
        most = min(rooms, default=None)

        def length(view: TrajectoryView) -> int:
            if view.tokens > view.prompt_tokens:
                return view.tokens
            prompt = view.prompt_tokens or assumed
            response = view.predicted if view.left is None else view.left
            if not predicted or response is None:
                return prompt
            wanted = prompt + math.ceil(response)
            return wanted if most is None else max(prompt, min(wanted, most))

        return length

    def pour(self, index: GainIndex, waiting: Queues, admits: TentativeAdmission) -> Iterator[Poured]:
        """Placements in order. Each is applied to the index and to a copy of admission when the next one is asked for."""
        k1, k4, alone, mu = self.k1, self.k4, max(self.k2, self.k3), self.mu
        length_of = self.lengths(index)
        versions = index.versions()
        newer = {version: versions[place:] for place, version in enumerate(versions)}
        started: dict[int, int] = {}
        forked = False
        allowed: list[int] | None = None
        for oldest, queue in waiting:
            if oldest is not None and oldest not in newer:
                newer[oldest] = versions[bisect_left(versions, oldest) :]
            for view in queue:
                length = length_of(view)
                least = mu * (1 / (k1 * length + alone + k4))
                version = started.get(view.group) if oldest is None else oldest
                if version is None:
                    if allowed is None:
                        allowed = [each for each in versions if admits.allows(each)]
                    candidates = allowed
                elif view.exact:
                    candidates = [version] if version in versions else []
                else:
                    candidates = newer[version]
                if not candidates and version is not None:
                    continue  # those that serve its version are lent, down or busy: it holds up nobody else
                for at in candidates:
                    found = index.best(at, length, least, version is None)
                    if found is not None:
                        break
                else:
                    return
                gain, chosen = found
                yield view, chosen, gain, least
                index.give(chosen, length)
                if version is None:
                    admits, forked = (admits if forked else admits.fork()), True
                    admits.take(view.group, at)
                    started[view.group] = at
                    allowed = None
