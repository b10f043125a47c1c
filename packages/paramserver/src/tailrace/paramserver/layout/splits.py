"""How one tensor is cut over the ranks of a tensor-parallel or expert-parallel group, and where its part lies.

A split is a small value with a method `place`; a user's own class with that method goes into a rule as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from tailrace.paramserver.errors import LayoutInvalid
from tailrace.paramserver.layout.boxes import Box, extent, whole
from tailrace.paramserver.layout.sharding import GlobalTensor


class Seat(NamedTuple):
    """Where a rank stands, as far as one tensor is concerned.

    Args:
        part: index in the tensor-parallel group (the experts' own one for a tensor of experts).
        parts: its size.
        expert: index among the rank's own experts, for the tensor of one expert.
        experts: first and one past the last of the rank's own experts.
    """

    part: int
    parts: int
    expert: int = 0
    experts: tuple[int, int] = (0, 1)


class Placed(NamedTuple):
    """A rank's buffer as one tensor sees it: its shape, and the boxes of the tensor with their positions in it."""

    shape: tuple[int, ...]
    boxes: Sequence[tuple[Box, tuple[int, ...]]]


class SplitRule(Protocol):
    """A way to cut a tensor."""

    def place(self, tensor: GlobalTensor, seat: Seat) -> Placed:
        """What the rank at a seat holds, and where.

        Raises:
            LayoutInvalid: the tensor cannot be cut so; names it.
        """
        ...


def share(size: int, parts: int, what: str, tensor: GlobalTensor) -> int:
    """A part of a size that must divide evenly.

    Raises:
        LayoutInvalid: it does not.
    """
    if size % parts:
        raise LayoutInvalid(f"{tensor.name!r} {tensor.shape}: found {size} {what}, expected a multiple of {parts}")
    return size // parts


@dataclass(frozen=True, slots=True)
class Whole:
    """Every rank holds all of it: norms, routers, biases of row-parallel layers."""

    def place(self, tensor: GlobalTensor, seat: Seat) -> Placed:  # noqa: ARG002  every rank holds the same
        return Placed(tensor.shape, [(whole(tensor.shape), (0,) * len(tensor.shape))] if 0 not in tensor.shape else [])


@dataclass(frozen=True, slots=True)
class Even:
    """Cut evenly along a dimension: column-parallel (0, the outputs) or row-parallel (1, the inputs).

    Args:
        dimension: the dimension to cut.
        slot: the part's place in a buffer that several tensors of one shape share along `dimension`: 0 for gate and 1
            for up in `gate_up_proj`.
        slots: how many share it.
    """

    dimension: int
    slot: int = 0
    slots: int = 1

    def place(self, tensor: GlobalTensor, seat: Seat) -> Placed:
        cut = self.dimension
        size = share(_size(tensor, cut), seat.parts, f"indices in dimension {cut}", tensor)
        box = (*whole(tensor.shape)[:cut], (seat.part * size, (seat.part + 1) * size), *whole(tensor.shape)[cut + 1 :])
        shape = (*tensor.shape[:cut], size * self.slots, *tensor.shape[cut + 1 :])
        at = tuple(self.slot * size if dimension == cut else 0 for dimension in range(len(shape)))
        return Placed(shape, [(box, at)])


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Rows cut evenly after padding: the last rows of the last ranks may hold nothing of the tensor.

    Args:
        multiple: the padded number of rows is a multiple of this.
        of_each_part: whether of this times the number of ranks: Megatron's `make_vocab_size_divisible_by`. Otherwise it
            must also be a multiple of the number of ranks: vLLM.
    """

    multiple: int
    of_each_part: bool = False

    def place(self, tensor: GlobalTensor, seat: Seat) -> Placed:
        rows = _size(tensor, 0)
        multiple = self.multiple * seat.parts if self.of_each_part else self.multiple
        size = share(-(-rows // multiple) * multiple, seat.parts, "padded rows", tensor)
        start, stop = min(rows, seat.part * size), min(rows, (seat.part + 1) * size)
        rest, zeros = whole(tensor.shape)[1:], (0,) * len(tensor.shape)
        return Placed((size, *tensor.shape[1:]), [(((start, stop), *rest), zeros)] if start < stop else [])


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """The rows of one of q, k and v in a fused parameter, cut by heads.

    Args:
        role: which of query, key and value the tensor is.
        heads: number of the model's query heads.
        kv_heads: number of the model's key-value heads.
        head_dim: rows of a head.
        grouped: the order of rows in the fused parameter. False: the queries, then the keys, then the values (vLLM);
            with more ranks than key heads, each of those lies on several ranks. True: group by group the queries, the key
            and the value of one key head (Megatron); with more ranks than groups, each rank has a part of a group's rows,
            wherever that cuts.
    """

    role: Literal["q", "k", "v"]
    heads: int
    kv_heads: int
    head_dim: int
    grouped: bool = False

    def place(self, tensor: GlobalTensor, seat: Seat) -> Placed:
        expected = (self.heads if self.role == "q" else self.kv_heads) * self.head_dim
        if _size(tensor, 0) != expected:
            raise LayoutInvalid(
                f"{tensor.name!r}: found {tensor.shape[0]} rows, expected {expected}, those of its heads"
            )
        queries = share(self.heads, seat.parts, "query heads", tensor)
        if self.grouped:
            return self._place_grouped(tensor, seat)
        replicas = share(seat.parts, self.kv_heads, "ranks", tensor) if seat.parts > self.kv_heads else 1
        keys = share(self.kv_heads * replicas, seat.parts, "key heads", tensor)
        count, first = (queries, seat.part) if self.role == "q" else (keys, seat.part // replicas)
        before = {"q": 0, "k": queries, "v": queries + keys}[self.role]
        rows = (first * count * self.head_dim, (first + 1) * count * self.head_dim)
        return self._placed(tensor, (queries + 2 * keys) * self.head_dim, [(rows, before * self.head_dim)])

    def _place_grouped(self, tensor: GlobalTensor, seat: Seat) -> Placed:
        queries = share(self.heads, self.kv_heads, "query heads", tensor)
        group = (queries + 2) * self.head_dim
        size = share(self.kv_heads * group, seat.parts, "fused rows", tensor)
        first, last = seat.part * size, (seat.part + 1) * size
        length = (queries if self.role == "q" else 1) * self.head_dim
        before = {"q": 0, "k": queries, "v": queries + 1}[self.role] * self.head_dim
        lines = []
        # Only the groups that the rank's rows touch.
        for number in range(first // group, -(-last // group)):
            fused = (
                number * group + before
            )  # row of this group's part of the tensor in the fused parameter of all ranks
            start, stop = max(fused, first), min(fused + length, last)
            if start < stop:
                own = number * length - fused
                lines.append(((start + own, stop + own), start - first))
        return self._placed(tensor, size, lines)

    def _placed(self, tensor: GlobalTensor, rows: int, lines: list[tuple[tuple[int, int], int]]) -> Placed:
        rest, zeros = whole(tensor.shape)[1:], (0,) * (len(tensor.shape) - 1)
        return Placed((rows, *tensor.shape[1:]), [((held, *rest), (at, *zeros)) for held, at in lines])


@dataclass(frozen=True, slots=True)
class InStack:
    """The tensor of one expert in a parameter that stacks the rank's experts in a dimension of its own (vLLM's `w13_weight`).

    Args:
        split: how each expert is cut.
    """

    split: SplitRule

    def place(self, tensor: GlobalTensor, seat: Seat) -> Placed:
        shape, boxes = self.split.place(tensor, seat)
        first, last = seat.experts
        return Placed((last - first, *shape), [(box, (seat.expert, *at)) for box, at in boxes])


@dataclass(frozen=True, slots=True)
class Stacked:
    """A tensor that itself stacks all experts in dimension 0, as transformers 5 has them.

    Args:
        dimension: the tensor's dimension to cut within each expert.
        slots: how many parameters it joins along that dimension, each cut by itself: 2 for `gate_up_proj`.
    """

    dimension: int
    slots: int = 1

    def place(self, tensor: GlobalTensor, seat: Seat) -> Placed:
        cut, (first, last) = self.dimension, seat.experts
        one = share(_size(tensor, cut), self.slots, f"indices in dimension {cut}", tensor)
        size = share(one, seat.parts, f"indices in dimension {cut} of one expert", tensor)
        boxes = []
        for slot in range(self.slots):
            edges = list(whole(tensor.shape))
            edges[0] = (first, last)
            edges[cut] = (slot * one + seat.part * size, slot * one + (seat.part + 1) * size)
            boxes.append((tuple(edges), tuple(slot * size if d == cut else 0 for d in range(len(edges)))))
        shape = list(extent(boxes[0][0]))
        shape[cut] = size * self.slots
        return Placed(tuple(shape), boxes if first < last else [])


def _size(tensor: GlobalTensor, dimension: int) -> int:
    if not 0 <= dimension < len(tensor.shape):
        raise LayoutInvalid(f"{tensor.name!r}: found the shape {tensor.shape}, expected a dimension {dimension} to cut")
    return tensor.shape[dimension]
