"""When provisioning is asked whether hybrids yield to the trainer, or come back (`YieldsDevices`).

looks at    every decision: whether the next batch is so far that they yield, whether the trainer computes, which hybrids
            are lent and which can be
"""

from __future__ import annotations

from tailrace import contracts as c
from tailrace.pipeline.controller.batches import Batches
from tailrace.pipeline.controller.fleet import Replicas, ReplicaState
from tailrace.pipeline.controller.plugin_faults import answered
from tailrace.pipeline.spec import PipelineSpec


class Yielding:
    """Watches the next batch for a provisioning policy that asks for it; otherwise it does nothing."""

    def __init__(self, spec: PipelineSpec, fleet: Replicas, batches: Batches) -> None:
        policy = spec.provisioning
        self._at = _share(policy) if isinstance(policy, c.YieldsDevices) else None
        self._fleet, self._batches = fleet, batches
        self._seen: tuple[object, ...] | None = None

    @property
    def used(self) -> bool:
        """Whether the policy asks for it."""
        return self._at is not None

    def batch(self) -> c.BatchView | None:
        """The next batch, for the policy."""
        return None if self._at is None else self._batches.view()

    def look(self) -> bool:
        """Whether the policy must be asked: what it would decide on has changed since the last look."""
        if self._at is None:
            return False
        batch = self._batches.view()
        reached = batch is not None and (batch.ready or batch.trains or batch.done >= self._at * batch.size)
        if not reached and self._seen == (False,):
            return False  # nothing was lent then, and nothing is without being asked for
        hybrids = [replica for replica in self._fleet.replicas.values() if replica.member.hybrid]
        lent = tuple([replica.id for replica in hybrids if replica.lent])
        before = self._seen
        if reached:
            assert batch is not None
            can = tuple([replica.id for replica in hybrids if _may_leave(replica)])
            self._seen = (batch.ready, batch.trains, batch.away, lent, can)
        else:
            self._seen = (lent, batch is not None and batch.away) if lent else (False,)
        return self._seen != before


def _may_leave(replica: ReplicaState) -> bool:
    return replica.serves and not replica.evaluating


def _share(policy: c.YieldsDevices) -> float:
    share = policy.yields_at
    if not isinstance(share, float | int) or not 0 < share <= 1:
        raise answered("provisioning", policy, "yields_at", share, "a share of a batch, above 0 and at most 1")
    return float(share)
