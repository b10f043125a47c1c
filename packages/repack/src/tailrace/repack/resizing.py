"""How the replicas of a fleet come to span another number of devices (tensor parallelism)."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.contracts import MemberView, Reason, ResizeReplica, StartReplica, StopReplica


def to_size(
    replicas: Sequence[MemberView], tp: int, devices: int, reason: Reason
) -> list[StartReplica | StopReplica | ResizeReplica]:
    """The actions after which every replica spans `tp` devices, and they have `devices` in all, or as many as fit whole.

    Growing replicas take over the devices of those beside them on their machine, which stop. Where replicas shrink, new ones
    start on the devices that they leave.

    Args:
        replicas: those that are not stopping.
    """
    room = max(1, devices // tp)
    in_groups = sorted(replicas, key=lambda replica: (-replica.tp, replica.machine))
    # of the replicas that grow into one, which are neighbours in this order, the first is kept
    kept: list[MemberView] = []
    taken = 0
    for replica in in_groups:
        if taken % tp == 0 or replica.tp >= tp:
            kept.append(replica)
        taken += replica.tp if replica.tp < tp else 0
    kept = kept[:room]
    names = {replica.id for replica in kept}
    stops = [StopReplica(replica.id, reason) for replica in replicas if replica.id not in names]
    resized = [
        ResizeReplica(replica.id, tp, reason) for replica in replicas if replica.id in names and replica.tp != tp
    ]
    return [*stops, *resized, *[StartReplica(reason, tp)] * (room - len(kept))]
