"""How long a judge's pass takes when some of its layers are streamed: a model for planning. Standard library only.

Two resources work beside each other: the device computes layers in order, the link copies streamed layers in order, into
slots that are free again when their layer has computed.
"""

from __future__ import annotations

from collections.abc import Sequence


def pass_s(compute_s: Sequence[float], copy_s: Sequence[float | None], *, pipelined: bool, slots: int = 2) -> float:
    """Seconds of one forward pass.

    With every layer streamed and all layers alike this is, for L layers, L * (compute + copy) without prefetch, and with it
    the first copy, L - 1 times the longer of both, and the last computation.

    Args:
        compute_s: seconds that each layer computes.
        copy_s: seconds of copying each layer to the device; None: it stays there.
        pipelined: whether copies run beside computing.
        slots: buffers for streamed layers, with prefetch.
    """
    if not pipelined:
        return sum(compute_s) + sum(copy for copy in copy_s if copy is not None)
    computed = copied = 0.0  # when the last layer so far has computed, and the last copy so far has ended
    freed: list[float] = []  # when each streamed layer gave its slot back
    for compute, copy in zip(compute_s, copy_s, strict=True):
        if copy is not None:
            slot_free = freed[-slots] if len(freed) >= slots else 0.0
            copied = max(copied, slot_free) + copy
            computed = max(computed, copied)
        computed += compute
        if copy is not None:
            freed.append(computed)
    return computed


def shared_s(actor_s: float, judge_s: float, *, slowdown: float | None) -> float:
    """Seconds until two processes on one device have both done their work, which takes them `actor_s` and `judge_s` alone.

    Without a multi-process service their kernels take turns. With one both run beside each other, each `slowdown` times
    slower while the other runs, and what is left of the longer one runs alone (RollPacker, section 4.3).

    Args:
        slowdown: 1: neither hinders the other, 2: no better than taking turns; None: no multi-process service.
    """
    if slowdown is None:
        return actor_s + judge_s
    shorter, longer = sorted((actor_s, judge_s))
    return slowdown * shorter + (longer - shorter)


def layer_flops(*, weights: int, query: int, tokens: int, items: int = 1) -> float:
    """Floating-point operations of one dense decoder layer's forward pass over `items` inputs of `tokens` tokens.

    Two for each weight and token, and causal attention's two products: half of 4 * tokens * tokens * query.

    Args:
        weights: parameters of the layer.
        query: query heads times their width.
        tokens: tokens of each input.
        items: inputs of the pass.
    """
    return items * (2.0 * weights * tokens + 2.0 * tokens * tokens * query)
