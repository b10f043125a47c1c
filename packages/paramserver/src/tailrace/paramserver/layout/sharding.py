"""One description of how a model is spread over workers, whatever framework spread it (StaleFlow, Appendix A.1).

    Layout ── tensors: what the model consists of, in Hugging Face names
       └───── shards: what each rank holds ── buffers: its local parameters ── pieces: box of a tensor -> place in the buffer

A tensor that is cut has pieces on several ranks, a replicated one has the same box on several ranks, and a fused
parameter (`qkv_proj`, `gate_up_proj`) is a buffer with pieces of several tensors. Elements of a buffer in no piece are padding.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tailrace.paramserver.layout.boxes import Box
from tailrace.paramserver.layout.shards import GlobalTensor, LocalBuffer, Piece, Shard
from tailrace.paramserver.layout.validation import check
from tailrace.paramserver.layout.wire import to_wire


@dataclass(frozen=True)
class Layout:
    """A model, and which rank holds which part of it.

    Checked when it is made: every element of every tensor is held by a rank, no rank holds one twice, and dtypes, shapes
    and positions agree. The order of `tensors` and `shards` carries no meaning: two layouts are equal, and have the same
    `digest`, when their content is.

    Args:
        tensors: the model. A tensor that is tied to another one is left out: it is the other one.
        shards: the shards of each rank, by the rank's name. A name stands for the same process in every layout.

    Raises:
        LayoutInvalid: names the tensor or buffer and the rank.
    """

    tensors: tuple[GlobalTensor, ...]
    shards: Mapping[str, Shard]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", tuple(sorted(self.tensors, key=lambda tensor: tensor.name)))
        known: dict[Shard, Shard] = {}
        seen: dict[int, Shard] = {}
        shards = {}
        for rank in sorted(self.shards):
            shard = self.shards[rank]
            # Hashing a large shard takes a while; replicas mostly come as one object.
            if id(shard) not in seen:
                seen[id(shard)] = known.setdefault(shard, shard)
            shards[rank] = seen[id(shard)]
        object.__setattr__(self, "shards", shards)
        check(self)

    @classmethod
    def of_boxes(cls, tensors: Sequence[GlobalTensor], boxes: Mapping[str, Mapping[str, Sequence[Box]]]) -> Layout:
        """A layout from the boxes of each tensor on each rank (`boxes[rank][tensor]`), each in a buffer of its own.

        Raises:
            LayoutInvalid: see the class.
        """
        return cls(tuple(tensors), {rank: Shard.of_boxes(tensors, held) for rank, held in boxes.items()})

    @classmethod
    def replicated(cls, tensors: Sequence[GlobalTensor], ranks: Iterable[str]) -> Layout:
        """The whole model on every rank: StaleFlow's parameter server workers, or replicas on one device each.

        Raises:
            LayoutInvalid: see the class.
        """
        shard = Shard.of_boxes(tensors, {tensor.name: [tuple((0, n) for n in tensor.shape)] for tensor in tensors})
        return cls(tuple(tensors), dict.fromkeys(ranks, shard))

    def in_dtypes(self, choose: Callable[[GlobalTensor], str]) -> Layout:
        """The same model cut in the same way, with other dtypes.

        Args:
            choose: the dtype of each tensor. Tensors that share a buffer stay alike.
        """
        dtypes = {tensor.name: choose(tensor) for tensor in self.tensors}
        made = {
            id(shard): Shard(
                tuple(
                    dataclasses.replace(
                        buffer, dtype=dtypes[buffer.pieces[0].tensor] if buffer.pieces else buffer.dtype
                    )
                    for buffer in shard.buffers
                )
            )
            for shard, _ in self.groups
        }
        tensors = tuple(tensor._replace(dtype=dtypes[tensor.name]) for tensor in self.tensors)
        return Layout(tensors, {rank: made[id(shard)] for rank, shard in self.shards.items()})

    @cached_property
    def tensor(self) -> Mapping[str, GlobalTensor]:
        """The tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def groups(self) -> tuple[tuple[Shard, tuple[str, ...]], ...]:
        """Every shard that differs from the others, and the ranks that hold it, in order of their names."""
        found: dict[int, tuple[Shard, list[str]]] = {}
        for rank, shard in self.shards.items():
            found.setdefault(id(shard), (shard, []))[1].append(rank)
        return tuple((shard, tuple(ranks)) for shard, ranks in found.values())

    @cached_property
    def digest(self) -> str:
        """A hash of the content: the same in every process."""
        text = json.dumps(self.to_wire(), separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_wire(self) -> dict[str, Any]:
        """The layout as a JSON object."""
        return to_wire(self.tensors, self.groups)


__all__ = ["LocalBuffer", "GlobalTensor", "Layout", "Piece", "Shard"]
