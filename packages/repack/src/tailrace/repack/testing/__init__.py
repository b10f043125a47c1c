"""Contract suites for routing, sync and relocation policies: run them on your own class.

Each case is drawn from a seed; a failure's message names the seed. Standard library only.
"""

from tailrace.repack.testing.cycles import (
    NEWEST,
    OLDEST,
    NotAdmittedError,
    SlotAdmission,
    random_cycle,
    random_views,
)
from tailrace.repack.testing.policies import check_relocation_policy, check_routing_policy, check_sync_policy

__all__ = [
    "NEWEST",
    "OLDEST",
    "NotAdmittedError",
    "SlotAdmission",
    "check_relocation_policy",
    "check_routing_policy",
    "check_sync_policy",
    "random_cycle",
    "random_views",
]
