"""Which layers of a judge fit on its device beside the activations of a batch. Standard library only.

The device holds: what is no layer (embeddings, norm, output) + resident layers + buffers for streamed layers + activations.
More tokens leave room for fewer layers.
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
