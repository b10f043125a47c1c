"""The layout of an FSDP2 model: DTensors on a device mesh. torch is imported when the converter is called.

The arithmetic of DTensor is here without torch: a mesh dimension either replicates the tensor or cuts one of its dimensions
as `torch.chunk` does: pieces of ceil(size / parts), the last ones shorter or empty. Mesh dimensions apply from left to
right. FSDP2 over tensor parallelism cuts a dimension that is already cut: `interleave` is torch's
`_StridedShard.split_factor`, and leaves a rank with several intervals of one dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from tailrace.contracts import extra
from tailrace.paramserver.errors import LayoutInvalid
from tailrace.paramserver.layout.boxes import Box
from tailrace.paramserver.layout.sharding import GlobalTensor, Layout, LocalBuffer, Piece, Shard


class Cut(NamedTuple):
    """A mesh dimension that cuts a dimension of the tensor.

    Args:
        dimension: the tensor's dimension, counted from the front.
        interleave: into how many parts the dimension is cut, and each of them over the mesh dimension; 1 for a plain cut.
    """

    dimension: int
    interleave: int = 1


Interval = tuple[int, int]


def chunk(size: int, parts: int, index: int) -> Interval:
    """The part of a dimension that `torch.chunk` gives to one of several parts."""
    step = -(-size // parts)
    return min(size, step * index), min(size, step * (index + 1))


def held_intervals(
    shape: Sequence[int], mesh: Sequence[int], coordinate: Sequence[int], placements: Sequence[Cut | None]
) -> list[list[Interval]]:
    """For each dimension of a tensor the intervals that a rank holds, in the order in which they lie in its local tensor.

    Args:
        shape: the tensor's shape.
        mesh: size of each mesh dimension.
        coordinate: the rank's coordinate in the mesh.
        placements: how each mesh dimension cuts the tensor; None if it replicates it.
    """
    held: list[list[Interval]] = [[(0, size)] if size else [] for size in shape]
    for parts, index, cut in zip(mesh, coordinate, placements, strict=True):
        if cut is None:
            continue
        intervals = held[cut.dimension]
        size = sum(stop - start for start, stop in intervals)
        kept: list[Interval] = []
        for block in range(cut.interleave):
            start, stop = chunk(size, cut.interleave, block)
            first, last = chunk(stop - start, parts, index)
            kept += _part(intervals, start + first, start + last)
        held[cut.dimension] = kept
    return held


def local_boxes(intervals: Sequence[Sequence[Interval]]) -> Iterator[tuple[Box, tuple[int, ...]]]:
    """The boxes that intervals in each dimension make, and the position of each in the local tensor."""
    placed: list[list[tuple[Interval, int]]] = []
    for held in intervals:
        at, line = 0, []
        for start, stop in held:
            line.append(((start, stop), at))
            at += stop - start
        placed.append(line)
    for choice in product(*placed):
        yield tuple(interval for interval, _ in choice), tuple(at for _, at in choice)


def _part(intervals: Sequence[Interval], first: int, last: int) -> list[Interval]:
    """The elements from `first` to `last` of the sequence that the intervals make when they are laid end to end."""
    found: list[Interval] = []
    at = 0
    for start, stop in intervals:
        low, high = max(first, at), min(last, at + stop - start)
        if low < high:
            begin, end = start + low - at, start + high - at
            if found and found[-1][1] == begin:
                found[-1] = (found[-1][0], end)
            else:
                found.append((begin, end))
        at += stop - start
    return found


def from_fsdp2(
    state_dict: Mapping[str, Any],
    *,
    rank_name: Callable[[int], str] = "rank{}".format,
    ranks: Iterable[int] | None = None,
) -> Layout:
    """The layout of all ranks, worked out on one of them from its own state dict, without communication.

    A rank's buffer of a tensor is called as the tensor and is its local tensor (`dtensor.to_local()`).

    Args:
        state_dict: the model's, after `fully_shard`, tensor parallelism, or both: DTensors with Shard and Replicate placements,
            on one or several meshes, and plain tensors, which every rank has. Tied parameters may appear under each name; they
            then count as several tensors. It need not be loaded: DTensors on the meta device suffice.
        rank_name: the name of a global rank of torch.distributed.
        ranks: all global ranks; by default those in the meshes.

    Raises:
        LayoutInvalid: a tensor has a placement that is not a part of it (`Partial`), or there are neither meshes nor ranks.
    """
    with extra("tailrace-paramserver", "torch"):
        from torch.distributed.tensor import DTensor

    meshes = {key: tensor.device_mesh for key, tensor in state_dict.items() if isinstance(tensor, DTensor)}
    everyone = set(ranks or ())
    for mesh in {id(mesh): mesh for mesh in meshes.values()}.values():
        everyone.update(int(rank) for rank in mesh.mesh.flatten())
    if not everyone:
        raise LayoutInvalid("found no DTensor, so no ranks; expected a sharded state dict, or `ranks`")
    coordinates: dict[int, dict[int, tuple[int, ...]]] = {}
    tensors: list[GlobalTensor] = []
    held: dict[int, list[LocalBuffer]] = {rank: [] for rank in everyone}
    for name, value in state_dict.items():
        tensor = GlobalTensor(name, str(value.dtype).removeprefix("torch."), tuple(int(size) for size in value.shape))
        tensors.append(tensor)
        if name not in meshes:
            whole = _buffer(tensor, [[(0, size)] if size else [] for size in tensor.shape])
            for rank in everyone:
                held[rank].append(whole)
            continue
        mesh = meshes[name]
        if id(mesh) not in coordinates:
            coordinates[id(mesh)] = _coordinates(mesh)
        placements = [_cut(placement, tensor) for placement in value.placements]
        size, made = tuple(mesh.shape), dict[tuple[int, ...], LocalBuffer]()
        for rank, coordinate in coordinates[id(mesh)].items():
            # Ranks that differ only where the tensor is replicated hold the same.
            key = tuple(-1 if cut is None else index for cut, index in zip(placements, coordinate, strict=True))
            if key not in made:
                made[key] = _buffer(tensor, held_intervals(tensor.shape, size, coordinate, placements))
            held[rank].append(made[key])
    return Layout(tuple(tensors), {rank_name(rank): Shard(tuple(buffers)) for rank, buffers in held.items()})


def _buffer(tensor: GlobalTensor, intervals: list[list[tuple[int, int]]]) -> LocalBuffer:
    shape = tuple(sum(stop - start for start, stop in line) for line in intervals)
    pieces = tuple(Piece(tensor.name, box, at) for box, at in local_boxes(intervals))
    return LocalBuffer(tensor.name, tensor.dtype, shape, pieces)


def _coordinates(mesh: Any) -> dict[int, tuple[int, ...]]:
    size = tuple(mesh.shape)
    places = product(*(range(length) for length in size))
    return {int(rank): place for rank, place in zip(mesh.mesh.flatten().tolist(), places, strict=True)}


def _cut(placement: Any, tensor: GlobalTensor) -> Cut | None:
    from torch.distributed.tensor import Replicate

    if isinstance(placement, Replicate):
        return None
    dimension = getattr(placement, "dim", None)
    # torch's strided shard is private and has had several base classes; its factor is what tells it apart.
    if dimension is None or placement.is_partial() or not 0 <= dimension < len(tensor.shape):
        raise LayoutInvalid(f"{tensor.name!r}: found the placement {placement}, expected Shard or Replicate")
    return Cut(int(dimension), int(getattr(placement, "split_factor", 1)))
