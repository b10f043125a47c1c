"""Plans are kept and reused (StaleFlow, Appendix A.2: "kept static and reused for every subsequent Push")."""

from __future__ import annotations

from collections import OrderedDict

from tailrace.paramserver.layout.links import LinkCosts
from tailrace.paramserver.layout.plan import ReshardPlan, reshard_plan
from tailrace.paramserver.layout.sharding import Layout


class Planner:
    """Makes reshard plans and keeps them, by the content of the two layouts. For one thread.

    Args:
        links: estimates of the links.
        capacity: how many plans to keep; the one unused for longest goes first.
    """

    def __init__(self, links: LinkCosts | None = None, *, capacity: int = 16) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: found {capacity}, expected at least 1")
        self._links = links or LinkCosts()
        self._capacity = capacity
        self._kept: OrderedDict[tuple[object, ...], ReshardPlan] = OrderedDict()
        #: How many plans were made.
        self.made = 0

    def plan(self, source: Layout, target: Layout) -> ReshardPlan:
        """The plan between two layouts: the one that was made before, if there is one.

        Raises:
            LayoutMismatch, LayoutInvalid: see `reshard_plan`.
        """
        key = (source.digest, target.digest)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        plan = self._kept[key] = reshard_plan(source, target, self._links)
        self.made += 1
        if len(self._kept) > self._capacity:
            self._kept.popitem(last=False)
        return plan

    def profiled(self, links: LinkCosts) -> None:
        """Take new estimates of the links. Plans are made anew if they differ from the old ones."""
        if links.key != self._links.key:
            self._kept.clear()
        self._links = links
