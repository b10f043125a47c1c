"""Which machines of a Ray cluster a member may stand on, from the label `tailrace-site` of each. Pure.

A machine at another site than the trainer's was started with ``ray start --labels tailrace-site=NAME``. Where no machine has
the label, as in a cluster that was started for one run, one machine stands for all sites.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SITE = "tailrace-site"
_DEVICE = "ray.io/accelerator-type"
Machine = Mapping[str, Any]
"""A row of `ray.nodes()`."""


def labelled_sites(machines: Iterable[Machine]) -> dict[str, int]:
    """How many living machines have each site as their label."""
    found = (_site(machine) for machine in machines if machine["Alive"])
    return dict(Counter(site for site in found if site))


def machines_at(site: str, machines: Sequence[Machine]) -> list[str]:
    """Ids of the living machines of a site, empty for the trainer's; of all living ones if none is there."""
    alive = [machine for machine in machines if machine["Alive"]]
    return [machine["NodeID"] for machine in alive if _site(machine) == site] or [
        machine["NodeID"] for machine in alive
    ]


def labels_of(site: str, device: str, sites: Mapping[str, int]) -> dict[str, str]:
    """The labels that a member's machine must have, as Ray writes them; empty if any machine will do.

    Args:
        site: the member's site; empty for the trainer's.
        device: kind of its GPUs; empty for any.
        sites: the labelled machines of the cluster, by site.
    """
    where = {SITE: site or f"!in({','.join(sorted(sites))})"} if sites else {}
    return where | ({_DEVICE: device} if device else {})


def _site(machine: Machine) -> str:
    return str((machine.get("Labels") or {}).get(SITE, ""))
