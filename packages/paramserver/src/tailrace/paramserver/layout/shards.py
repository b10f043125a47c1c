"""What one rank holds of a model: buffers, and the pieces of tensors that lie in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tailrace.paramserver.layout.boxes import Box, extent
from tailrace.paramserver.manifest import byte_size


class GlobalTensor(NamedTuple):
    """A tensor of the model before it is cut.

    Args:
        name: Hugging Face parameter name.
        dtype: a key of `tailrace.paramserver.manifest.DTYPES`.
        shape: dimensions.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its size."""
        return byte_size(self.dtype, self.shape)


class Piece(NamedTuple):
    """A box of a tensor in a buffer.

    Args:
        tensor: its name.
        box: the elements, not empty.
        at: position of the box's first element in the buffer. The box lies in the buffer's last dimensions; where the
            buffer has more dimensions than the tensor, as with experts stacked in one parameter, `at` picks the index in them.
    """

    tensor: str
    box: Box
    at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LocalBuffer:
    """A local parameter of a rank: dense, row-major memory.

    Args:
        name: the rank's name for it.
        dtype: the dtype of every piece.
        shape: local dimensions.
        pieces: its pieces. Elements in no piece are padding, which is never read or written.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", tuple(sorted(self.pieces, key=lambda piece: piece.at)))


@dataclass(frozen=True)
class Shard:
    """What one rank holds. Ranks that hold the same share one `Shard`.

    Args:
        buffers: kept in order of name, so that equal shards are equal whatever order they were made in.
    """

    buffers: tuple[LocalBuffer, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffers", tuple(sorted(self.buffers, key=lambda buffer: buffer.name)))

    @classmethod
    def of_boxes(cls, tensors: Iterable[GlobalTensor], boxes: Mapping[str, Sequence[Box]]) -> Shard:
        """A shard with a buffer of its own for every box: `name`, or `name#0`, `name#1` where a tensor has several."""
        buffers = []
        for tensor in tensors:
            held = [tuple((int(start), int(stop)) for start, stop in box) for box in boxes.get(tensor.name, ())]
            for index, box in enumerate(held):
                name = tensor.name if len(held) == 1 else f"{tensor.name}#{index}"
                piece = Piece(tensor.name, box, (0,) * len(box))
                buffers.append(LocalBuffer(name, tensor.dtype, extent(box), (piece,)))
        return cls(tuple(buffers))

    @cached_property
    def pieces(self) -> Mapping[str, tuple[tuple[LocalBuffer, Piece], ...]]:
        """The pieces of every tensor, and the buffers that they lie in."""
        found: dict[str, list[tuple[LocalBuffer, Piece]]] = {}
        for buffer in self.buffers:
            for piece in buffer.pieces:
                found.setdefault(piece.tensor, []).append((buffer, piece))
        return {name: tuple(held) for name, held in found.items()}
