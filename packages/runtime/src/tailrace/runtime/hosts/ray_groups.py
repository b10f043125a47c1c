"""Placement groups of Ray: members that stand together, such as a trainer's ranks and the replicas on their devices.

A group is placed once, for all starts of its members. Ray places the parts anew that a lost machine had; the others stay. A
group that has a part on a machine which the run has given up is removed, and another one is placed without that machine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tailrace.runtime.executor.seam import Bundle
from tailrace.runtime.hosts.ray_sites import NODE, excluded

_LOOK_AHEAD = 8  # most groups of a name that were replaced by an earlier controller
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

        for row in ray.util.placement_group_table().values():
            if row["name"].startswith(f"{self._run}/") and row["state"] != "REMOVED":
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

        for number in range(_LOOK_AHEAD, 0, -1):
            try:
                return number, ray.util.get_placement_group(self._name(name, number))
            except ValueError:  # there is none
                continue
        return 0, None

    def _name(self, name: str, number: int) -> str:
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
