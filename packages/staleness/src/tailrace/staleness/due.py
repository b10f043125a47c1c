"""A batch whose groups are fixed, in the order that a sampler likes."""

from __future__ import annotations

from collections.abc import Sequence, Set

from tailrace.contracts import Candidate, Sampler
from tailrace.staleness.errors import SamplerError


def in_order(due: Set[int], candidates: Sequence[Candidate], sampler: Sampler, what: str) -> list[int]:
    """The groups that are due, in the sampler's order.

    Args:
        due: groups that must be trained on now.
        candidates: complete groups, these among them.
        sampler: orders them.
        what: is the batch, for a person.

    Raises:
        SamplerError: a group is not among the candidates, or the sampler picks others.
    """
    batch = [candidate for candidate in candidates if candidate.key in due]
    picked = list(sampler.pick(batch, len(batch)))
    if len(picked) != len(due) or set(picked) != due:
        raise SamplerError(f"found {picked!r:.120} to train on, expected {sorted(due)!r:.120}, the whole {what}")
    return picked
