"""The pool that a new replica joins. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tailrace.pipeline.spec import PipelineSpec, RolloutPool


def pool_for(spec: PipelineSpec, members: Iterable[str], wanted: str | None = None) -> RolloutPool | None:
    """The pool that a new replica joins.

    Args:
        spec: the pipeline, with its pools in order.
        members: the pool of each replica that is not gone.
        wanted: a pool's name; None leaves the choice.

    Returns:
        The pool of that name, or None if there is none. Without a name the first pool that has fewer replicas than it was
        given, or else the last; where all replicas are alike, one without a name that has the sizes of the run.
    """
    pools = spec.pools or (RolloutPool("", 0, tp=spec.tp, replica_batch=spec.replica_batch),)
    if wanted is not None:
        return next((pool for pool in pools if pool.name == wanted), None)
    counts = Counter(members)
    return next((pool for pool in pools if counts[pool.name] < pool.count), pools[-1])
