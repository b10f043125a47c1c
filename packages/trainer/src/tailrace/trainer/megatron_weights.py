"""Weights of Megatron-core's GPTModel from and to Hugging Face's: what is fused, cut and padded stands in the layout.

    qkv             the rows of a key head's queries, its key and its value, head by head
    linear_fc1      this rank's rows of gate, then of up
    vocabulary      padded to a multiple of the ranks

So there is no conversion by hand: a piece of the layout is a box of a Hugging Face tensor and its place in a local parameter.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tailrace.paramserver.errors import LayoutInvalid
from tailrace.paramserver.layout import (
    Box,
    GlobalTensor,
    Layout,
    LocalBuffer,
    Piece,
    Rule,
    Shard,
    Whole,
    from_megatron,
    qwen_tensors,
)
from tailrace.trainer.critic_init import HEAD
from tailrace.trainer.errors import CheckpointError, ModelError
from tailrace.trainer.sharded_load import ModelFiles

_LAYER = r"model\.layers\.(?P<layer>\d+)\."
# Without Transformer Engine norms are modules of their own.
_NORMS = [
    Rule(_LAYER + r"input_layernorm\.weight", "decoder.layers.{local_layer}.input_layernorm.weight", Whole()),
    Rule(
        _LAYER + r"post_attention_layernorm\.weight", "decoder.layers.{local_layer}.pre_mlp_layernorm.weight", Whole()
    ),
]
_HEAD = Rule(re.escape(HEAD), HEAD, Whole())


def gpt_layout(model: Mapping[str, Any], tp: int, ranks: int, dtype: str, *, values: bool = False) -> Layout:
    """What each of so many ranks holds under which name of GPTModel's.

    Args:
        model: the Hugging Face config.
        tp: ranks that split every layer.
        ranks: all ranks.
        dtype: dtype of all tensors.
        values: whether the model has a value head in place of an output layer: the same on every rank.

    Raises:
        ModelError: a size is missing in the Hugging Face config.
    """
    try:
        if values:
            model = without_output_layer(model)
        tensors = qwen_tensors(model, dtype)
        if values:
            tensors = (*tensors, GlobalTensor(HEAD, dtype, (1, model["hidden_size"])))
        return from_megatron(tensors, model, tp=tp, dp=ranks // tp, vocabulary_multiple=1, rules=[*_NORMS, _HEAD])
    except LayoutInvalid as error:
        raise ModelError(f"{error} for the backend megatron") from error


def without_output_layer(model: Mapping[str, Any]) -> dict[str, Any]:
    """A Hugging Face config of the same layers that has no tensor of its own for an output layer."""
    return {**model, "tie_word_embeddings": True}


def _at(piece: Piece) -> tuple[slice, ...]:
    """The piece's place in its buffer."""
    return tuple(slice(at, at + stop - start) for at, (start, stop) in zip(piece.at, piece.box, strict=True))


def _of(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def put_rows(shard: Shard, name: str, local: Mapping[str, Tensor], read: Any) -> None:
    """Put a rank's boxes of one Hugging Face tensor into its local tensors.

    Args:
        shard: what the rank holds.
        name: the tensor.
        local: the rank's tensors by GPTModel's names, or some of them.
        read: gives the rows of a slice of the tensor.
    """
    for buffer, piece in shard.pieces.get(name, ()):
        if buffer.name not in local:
            continue
        (start, stop), *rest = piece.box
        target = local[buffer.name]
        target[_at(piece)] = read(slice(start, stop))[(slice(None), *_of(tuple(rest)))].to(target)


def load_shard(
    model_path: Path, layout: Layout, rank: str, local: Mapping[str, Tensor], *, fresh: Collection[str] = ()
) -> None:
    """Fill a rank's tensors from a model directory, of which it reads the rows that the rank has a part of.

    Args:
        model_path: the directory.
        layout: what each rank holds.
        rank: this one.
        local: its tensors by GPTModel's names.
        fresh: tensors that are not looked for.

    Raises:
        ModelError: a tensor is missing, or of another shape than the directory's config says.
    """
    try:
        files = ModelFiles(model_path)
    except CheckpointError as error:
        raise ModelError(f"{model_path} does not load: {error}") from error
    for name, _, shape in layout.tensors:
        if name in fresh:
            continue
        if not files.has(name, torch.Size(shape)):
            raise ModelError(
                f"{model_path}: found no {name!r} of shape {list(shape)}, expected every tensor that config.json implies"
            )

        def read(rows: slice, name: str = name, shape: tuple[int, ...] = shape) -> Tensor:
            found = torch.empty(rows.stop - rows.start, *shape[1:], dtype=next(iter(local.values())).dtype)
            files.read(name, rows, found)
            return found

        with torch.no_grad():
            put_rows(layout.shards[rank], name, local, read)


class Gatherer:
    """Puts whole Hugging Face tensors together from the shards of tensor-parallel ranks.

    Args:
        layout: what each rank holds.
        ranks: the ranks of this rank's group, in order.
        group: their process group.
        like: a tensor of the dtype and on the device of what is put together.
    """

    def __init__(self, layout: Layout, ranks: list[str], group: Any, like: Tensor) -> None:
        self._layout, self._group, self._like = layout, group, like
        self._shards = [layout.shards[rank] for rank in ranks]
        self._place = dist.get_rank(group)

    def whole(self, name: str, local: Mapping[str, Tensor]) -> Tensor:
        """A tensor from all ranks' local ones by GPTModel's names. Collective in the group.

        It may be a view of a local one.
        """
        shape = self._layout.tensor[name].shape
        mine = self._shards[self._place].pieces.get(name, ())
        if len(mine) == 1 and mine[0][1].box == tuple((0, size) for size in shape):  # no other rank has more
            buffer, piece = mine[0]
            return local[buffer.name][_at(piece)]
        found = self._like.new_empty(shape)
        held = [shard.pieces.get(name, ()) for shard in self._shards]
        for pieces, part in zip(held, self._parts(held, local), strict=True):
            offset = 0
            for _, piece in pieces:
                target = found[_of(piece.box)]
                target.copy_(part[offset : offset + target.numel()].view(target.shape))
                offset += target.numel()
        return found

    def _parts(
        self, held: list[tuple[tuple[LocalBuffer, Piece], ...]], local: Mapping[str, Tensor]
    ) -> Iterator[Tensor]:
        """Each rank's pieces, one after the other; padded, since collectives want equal sizes."""
        mine = [local[buffer.name][_at(piece)].flatten() for buffer, piece in held[self._place]]
        if len(held) == 1:
            yield torch.cat(mine)
            return
        most = max(sum(_volume(piece.box) for _, piece in pieces) for pieces in held)
        padded = self._like.new_zeros(most)
        if mine:
            flat = torch.cat(mine)
            padded[: len(flat)] = flat
        parts = [torch.empty_like(padded) for _ in held]
        dist.all_gather(parts, padded, group=self._group)
        yield from parts


def _volume(box: Box) -> int:
    found = 1
    for start, stop in box:
        found *= stop - start
    return found
