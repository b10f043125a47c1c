"""Where members stand in a Ray cluster: together, as a trainer's ranks and the replicas on their devices, and at which site.

A group is placed once, for all starts of its members. Ray places the parts anew that a lost machine had; the others stay. A
group that has a part on a machine which the run has given up is removed, and another one is placed without that machine.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tailrace.runtime.executor.seam import Bundle

_A_LITTLE = 0.001  # a part must take something: CPUs, where its members take no GPUs


class PlacementGroups:
    """The placement groups of a run. Ray is joined before.

    Args:
        run: the first part of their names.
        detached: whether they outlive who makes them, as the run's members do.
    """

    def __init__(self, run: str, *, detached: bool) -> None:
        self._run, self._detached = run, detached
        self._groups: dict[str, tuple[int, Any]] = {}

    def options(self, bundle: Bundle, avoid: Sequence[str], labels: Mapping[str, str], at: str = "") -> dict[str, Any]:
        """Ray's options of a member that stands in a part of a group. The group is made if it is not there.

        Args:
            bundle: the part.
            avoid: Ray's ids of machines that must not be used.
            labels: those that its machines must have.
            at: Ray's id of the machine on which a group that is made now is to stand whole; empty: Ray chooses.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        number, group = self._groups.get(bundle.group) or self._find(bundle.group)
        if group is not None and any(node in avoid for node in self._nodes(group)):
            self._remove(group)
            group = None
        if group is None:
            number, group = number + 1, self._make(bundle, number + 1, avoid, labels, at)
        self._groups[bundle.group] = number, group
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, bundle.index, False)}

    def end_all(self) -> None:
        """Remove the groups of the run, with the members that stand there; an earlier controller may have made them."""
        import ray

        for row in self._standing(f"{self._run}/"):
            with suppress(ValueError):  # it is gone meanwhile
                self._remove(ray.util.get_placement_group(row["name"]))
        self._groups.clear()

    def _make(self, bundle: Bundle, number: int, avoid: Sequence[str], labels: Mapping[str, str], at: str) -> Any:
        import ray

        selector = dict(labels) | ({NODE: at} if at else excluded(avoid))
        return ray.util.placement_group(
            [{"GPU": gpus} if gpus else {"CPU": _A_LITTLE} for gpus in bundle.parts],
            strategy=bundle.strategy.upper().replace("-", "_"),
            name=self._name(bundle.group, number),
            lifetime="detached" if self._detached else None,
            bundle_label_selector=[selector] * len(bundle.parts) if selector else None,
        )

    def _find(self, name: str) -> tuple[int, Any]:
        """The newest group of a name that another controller of the run made, and its number; 0 and None if there is none."""
        import ray

        beginning = self._name(name, "")
        ends = [row["name"].removeprefix(beginning) for row in self._standing(beginning)]
        for number in sorted((int(end) for end in ends if end.isdecimal()), reverse=True):
            with suppress(ValueError):  # it is gone meanwhile, or is another's
                return number, ray.util.get_placement_group(self._name(name, number))
        return 0, None

    def _standing(self, beginning: str) -> list[Any]:
        """Ray's rows of the groups whose names begin so, without those that were removed."""
        import ray

        rows = ray.util.placement_group_table().values()
        return [row for row in rows if row["name"].startswith(beginning) and row["state"] != "REMOVED"]

    def _name(self, name: str, number: int | str) -> str:
        return f"{self._run}/{name}-{number}"

    def _nodes(self, group: Any) -> Sequence[str]:
        import ray

        return list(ray.util.placement_group_table(group).get("bundles_to_node_id", {}).values())

    def _remove(self, group: Any) -> None:
        import ray

        ray.util.remove_placement_group(group)


def leave_group(patience_s: float) -> None:
    """Remove the group of this process after a while in which its other members end by themselves; nothing if it has none."""
    import ray

    group = ray.util.get_current_placement_group()
    if group is not None:
        time.sleep(patience_s)
        ray.util.remove_placement_group(group)


# The machines of a Ray cluster: their names, and on which a member may stand, from the label `tailrace-site`. Pure.
#
# A machine at another site than the trainer's was started with ``ray start --labels tailrace-site=NAME``. Where no machine has
# the label, as in a cluster that was started for one run, one machine stands for all sites.

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
