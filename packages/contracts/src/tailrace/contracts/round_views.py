"""What policies see of the rounds of batching (RollPacker, section 3): the one that is generated, and those that are over."""

from __future__ import annotations

from tailrace.contracts.record import record


@record
class RoundView:
    """The round that is being generated (RollPacker, section 3).

    Args:
        number: its number, rising.
        kind: ``"short"`` or ``"long"``.
        size: groups that it keeps.
        kept: groups that are complete so far.
        samples: trajectories that it keeps: `size` groups of them.
        generated: of those, trajectories that have finished generating so far.
    """

    number: int
    kind: str
    size: int
    kept: int
    samples: int
    generated: int


@record
class RoundRecord:
    """A round that is over.

    Args:
        number: its number, rising.
        kind: ``"short"`` or ``"long"``.
        size: groups that it kept.
        tp: devices of each replica (tensor parallelism) while it was generated.
        preemptions: times that engines took a trajectory's KV cache away in it.
        generation_s: seconds from its first start to its last complete group.
    """

    number: int
    kind: str
    size: int
    tp: int
    preemptions: int
    generation_s: float
