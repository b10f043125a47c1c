"""The best split of devices and mix of policies for a workload, before a GPU is paid for."""

from tailrace.fleetsim.plan.search import Option, Search, plan
from tailrace.fleetsim.plan.space import Mix, Split, mixes, splits

__all__ = ["Mix", "Option", "Search", "Split", "mixes", "plan", "splits"]
