"""A layout as JSON: what its digest is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.paramserver.layout.shards import GlobalTensor, Shard


def to_wire(tensors: Sequence[GlobalTensor], groups: Sequence[tuple[Shard, tuple[str, ...]]]) -> dict[str, Any]:
    """A layout as a JSON object: `tensors`, each different shard once, and the index of each rank's shard."""
    index = {tensor.name: position for position, tensor in enumerate(tensors)}
    return {
        "tensors": [[tensor.name, tensor.dtype, list(tensor.shape)] for tensor in tensors],
        "shards": [
            [
                [
                    buffer.name,
                    buffer.dtype,
                    list(buffer.shape),
                    [[index[p.tensor], [list(edges) for edges in p.box], list(p.at)] for p in buffer.pieces],
                ]
                for buffer in shard.buffers
            ]
            for shard, _ in groups
        ],
        "ranks": {rank: number for number, (_, ranks) in enumerate(groups) for rank in ranks},
    }
