"""Axis provisioning: hybrids, replicas on the trainer's devices that yield to it in each step (RobustRL, sections 2.1 and 7.1).

generate ──share of the batch is complete──► yield ──► the trainer computes ──► come back ──► generate
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from tailrace.contracts import (
    BatchView,
    Facts,
    FleetView,
    Health,
    LendReplica,
    ProvisioningPolicy,
    Reason,
    ReplicaView,
    ReturnReplica,
    StartReplica,
    Tried,
    Why,
)
from tailrace.repack.errors import LoadError


@dataclass(frozen=True, slots=True)
class Hybrid(ProvisioningPolicy):
    """A fixed number of replicas, of which those on the trainer's devices yield to it. Plugin ``hybrid``.

    While other replicas generate, hybrids yield once a share of the batch's groups is complete, and what they had goes to the
    others (semi-sync); where there are no others, once the batch is (sync). They come back when the trainer computes no more
    and the next batch is not so far yet. While the trainer is away, nothing changes hands: who generates goes on. A hybrid that
    pulls weights or runs an evaluation yields when it is done, and one that starts once it serves a version.

    Args:
        count: number of replicas, hybrids and others.
        yields_at: share of the batch's groups that are complete when hybrids yield. The paper has 0.5 for semi-sync.

    Raises:
        LoadError: an option is out of its range.
    """

    count: int = 2
    yields_at: Annotated[float, Tried((0.25, 0.5, 0.5, 1.0))] = 1.0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise LoadError(f"found count={self.count}, expected at least 1")
        if not 0 < self.yields_at <= 1:
            raise LoadError(f"found yields_at={self.yields_at}, expected above 0 and at most 1")

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """The run's replicas."""
        return {"count": facts.replicas}

    def yields_from(self) -> float:
        """The share at which hybrids yield."""
        return self.yields_at

    def plan(self, view: FleetView) -> Sequence[StartReplica | LendReplica | ReturnReplica]:
        """Start the replicas; lend the hybrids' devices, or take them back."""
        replicas = [member for member in view.of("replica") if member.health is not Health.STOPPING]
        if not replicas:
            return [StartReplica()] * self.count
        batch = view.batch
        if batch is not None and batch.away:
            return ()
        if batch is None or not self._yield(batch, others=any(not member.hybrid for member in replicas)):
            return [ReturnReplica(name) for name in view.lent]
        reason = Reason(Why.POLICY, numbers={"done": float(batch.done), "groups": float(batch.size)})
        return [LendReplica(load.replica, reason) for load in view.loads if _may_leave(load)]

    def _yield(self, batch: BatchView, *, others: bool) -> bool:
        return batch.trains or batch.ready or (others and batch.done / batch.size >= self.yields_at)


def _may_leave(load: ReplicaView) -> bool:
    return bool(load.cells) and load.version is not None and not load.pulling and not load.pinned
