"""Which layers of a judge fit on its device, and how long a pass takes with the others streamed. Standard library only.

The device holds: what is no layer (embeddings, norm, output) + resident layers + buffers for streamed layers + activations.
More tokens leave room for fewer layers.

In a pass two resources work beside each other: the device computes layers in order, the link copies streamed layers in order,
into slots that are free again when their layer has computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SLACK = 1.1  # allocations are rounded up, and kernels keep small results of their own


@dataclass(frozen=True, slots=True)
class ActivationShape:
    """What decides the activations of one forward pass of a Llama-like decoder without a key-value cache.

    Args:
        hidden: width of the residual stream.
        mlp: width of the feed-forward layer.
        query: query heads times their width.
        key_value: key-value heads times their width.
        head_dim: width of a head.
        vocabulary: number of logits.
        value_bytes: bytes of a value.
        window: width of a sliding attention window, in tokens; None: there is none.
        score_heads: heads whose whole score matrix is kept, where no fused attention kernel exists; else 0.
    """

    hidden: int
    mlp: int
    query: int
    key_value: int
    head_dim: int
    vocabulary: int
    value_bytes: int
    window: int | None = None
    score_heads: int = 0

    def activation_bytes(self, items: int, tokens: int) -> int:
        """Most bytes that are alive at once beside the weights, for `items` sequences padded to `tokens` tokens.

        The peak stands in one layer: in its normalisation (in float32), its attention (rotated queries and keys and their
        intermediate results) or its feed-forward part (three tensors of its width), beside the embeddings, the layer's
        input and its residual.
        """
        size = self.value_bytes
        held = 3 * self.hidden * size  # embeddings, input of the layer, residual
        norm = self.hidden * (3 * size + 12)
        rotation = size * (5 * self.query + 4 * self.key_value) + 12 * self.query
        attention = self.hidden * size + max(rotation, size * (4 * self.query + 2 * self.key_value))
        mlp = size * (2 * self.hidden + 3 * self.mlp)
        each = held + max(norm, attention, mlp) + 24  # and the token ids, positions and a mask's entries
        logits = items * self.vocabulary * (size + 8)
        positions = tokens * self.head_dim * (16 + 2 * size)
        mask = 2 * tokens * tokens if self.window is not None and tokens >= self.window else 0
        scores = 3 * items * self.score_heads * tokens * tokens * size
        return int(_SLACK * (items * tokens * each + logits + positions + mask + scores))


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes of a model's weights.

    Args:
        fixed_bytes: what is no layer and stays on the device; workspaces of kernels too.
        layer_bytes: each layer, in the order in which layers become resident.
        slots: buffers that streamed layers take turns in: 2 with prefetch, 1 without.
    """

    fixed_bytes: int
    layer_bytes: tuple[int, ...]
    slots: int

    def device_bytes(self, resident: int) -> int:
        """Weights on the device with the first `resident` layers there: those, the buffers, and what is no layer."""
        streamed = len(self.layer_bytes) - resident
        buffers = min(self.slots, streamed) * max(self.layer_bytes[resident:], default=0)
        return self.fixed_bytes + sum(self.layer_bytes[:resident]) + buffers

    def resident(self, memory_bytes: int, activation_bytes: int) -> int | None:
        """The most layers that can stay on the device beside these activations, or None if the least does not fit."""
        left = memory_bytes - activation_bytes
        return next((n for n in range(len(self.layer_bytes), -1, -1) if self.device_bytes(n) <= left), None)

    def least_bytes(self, activation_bytes: int) -> int:
        """The smallest budget in which these activations fit."""
        return activation_bytes + min(self.device_bytes(n) for n in range(len(self.layer_bytes) + 1))


def residency_order(layers: int) -> Sequence[int]:
    """The order in which layers become resident: evenly spread at every length, so that each copy has computing to hide
    behind. Layer 0 is first, which hides the first copy.

    With 8 layers: 0, 4, 2, 6, 1, 5, 3, 7.
    """
    bits = max(1, (layers - 1).bit_length())
    return sorted(range(layers), key=lambda index: int(f"{index:0{bits}b}"[::-1], 2))


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
