"""The best split of devices and mix of policies for a workload, before a GPU is paid for."""

from tailrace.fleetsim.plan.search import Option, Search, plan
from tailrace.fleetsim.plan.space import Mix, PoolShare, Split, devices_of, mixes, splits

__all__ = ["Mix", "Option", "PoolShare", "Search", "Split", "devices_of", "mixes", "plan", "splits"]
