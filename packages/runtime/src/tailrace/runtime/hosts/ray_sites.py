"""The machines of a Ray cluster: their names, and on which a member may stand, from the label `tailrace-site`. Pure.

A machine at another site than the trainer's was started with ``ray start --labels tailrace-site=NAME``. Where no machine has
the label, as in a cluster that was started for one run, one machine stands for all sites.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SITE = "tailrace-site"
_DEVICE, NODE = "ray.io/accelerator-type", "ray.io/node-id"
Machine = Mapping[str, Any]
"""A row of `ray.nodes()`."""
Needs = tuple[float, float]
"""CPUs and GPUs of a member."""


def machine_names(machines: Iterable[Machine]) -> dict[str, str]:
    """The name of each machine by Ray's id: what ``ray start --node-name`` gave it, else its address.

    Where two have the same name, such as a machine that came back under a new id, the beginning of the id follows.
    """
    plain = {str(row["NodeID"]): str(row.get("NodeName") or row.get("NodeManagerAddress", "")) for row in machines}
    many = Counter(plain.values())
    return {id_: name if name and many[name] == 1 else f"{name}/{id_[:8]}" for id_, name in plain.items()}


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


def excluded(machines: Iterable[str]) -> dict[str, str]:
    """The label selector that rules out machines, by their ids; empty if there are none."""
    ids = ",".join(sorted(machines))
    return {NODE: f"!in({ids})"} if ids else {}


def room_elsewhere(name: str, machines: Sequence[Machine], standing: Mapping[str, Sequence[Needs]]) -> tuple[str, ...]:
    """The other machines that have room, together, for all that stands on one.

    Only machines of its site and with its kind of GPUs count. What others than this run have there is not known.

    Args:
        name: Ray's id of the machine.
        machines: the rows of all machines.
        standing: CPUs and GPUs of each member of the run, by Ray's id of the machine where it stands.

    Returns:
        Their ids, those with most room first; empty if not everything fits.
    """
    rows = {row["NodeID"]: row for row in machines}
    if name not in rows:
        return ()
    free: dict[str, list[float]] = {}
    for node, row in rows.items():
        if row["Alive"] and node != name and _kind(row) == _kind(rows[name]):
            used = [sum(column) for column in zip(*standing.get(node, ()), strict=True)] or [0.0, 0.0]
            have = [float(row["Resources"].get(key, 0.0)) for key in ("CPU", "GPU")]
            free[node] = [most - taken for most, taken in zip(have, used, strict=True)]
    ordered = sorted(free, key=lambda node: (free[node][1], free[node][0]), reverse=True)
    for cpus, gpus in sorted(standing.get(name, ()), key=lambda needs: needs[::-1], reverse=True):
        fits = next((node for node in ordered if free[node][0] >= cpus and free[node][1] >= gpus), None)
        if fits is None:
            return ()
        free[fits] = [free[fits][0] - cpus, free[fits][1] - gpus]
    return tuple(ordered)


def _kind(machine: Machine) -> tuple[str, str]:
    return _site(machine), str((machine.get("Labels") or {}).get(_DEVICE, ""))


def _site(machine: Machine) -> str:
    return str((machine.get("Labels") or {}).get(SITE, ""))
