"""A version that several publishers bring together, each its own share: no rank of a trainer ever holds the others' weights.

    layout of the trainer ──reshard plan──► who sends which box ──► one manifest, and each rank's chunks of it

Every rank works the same manifest out for itself. A rank's boxes lie together and begin at a chunk, so that it can hash and
send its chunks alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tailrace.paramserver.chunk_size import CHUNK_BYTES
from tailrace.paramserver.errors import ManifestInvalid
from tailrace.paramserver.layout.message import SliceCopy, message
from tailrace.paramserver.layout.reshard_plan import reshard_plan
from tailrace.paramserver.layout.sharding import Layout
from tailrace.paramserver.layout.strided import copy_box, dense_strides, flat
from tailrace.paramserver.manifest import ALIGNMENT, Manifest, Part, TensorSpec, aligned

_RELAY = "the relay"


@dataclass(frozen=True)
class Share:
    """The part of a version that one of several publishers has.

    Args:
        manifest: the version that all of them bring together; its version and stamp mean nothing.
        moves: the source of each spec of this share.
        source_bytes: size of every buffer that is read.
        first, last: its chunks, the last one excluded.
    """

    manifest: Manifest
    moves: Mapping[str, tuple[tuple[TensorSpec, SliceCopy], ...]]
    source_bytes: Mapping[str, int]
    first: int
    last: int

    @cached_property
    def extent(self) -> tuple[int, int]:
        """First and one past the last byte of its chunks."""
        size = self.manifest.chunk_bytes
        return self.first * size, min(self.last * size, self.manifest.total_bytes)

    def copy(self, weights: Iterable[tuple[str, Any]], view: memoryview) -> None:
        """Copy the rank's own tensors to their places in the version.

        Args:
            weights: the rank's buffers under the names that its layout gives them. One at a time is held.
            view: memory for the whole version; only this share's bytes are written.

        Raises:
            ManifestInvalid: a buffer is missing.
            LayoutMismatch: a buffer's size is not the layout's.
        """
        missing = set(self.moves)
        for name, value in weights:
            if name not in missing:
                continue
            missing.discard(name)
            source = flat(value, name, self.source_bytes[name], writable=False)
            for spec, move in self.moves[name]:
                dense = dense_strides(move.extent, move.itemsize)
                place = move.source
                copy_box(source, place.offset, place.strides, view, spec.offset, dense, move.extent, move.itemsize)
        if missing:
            raise ManifestInvalid(f"found no weights for {len(missing)} buffers of this rank, one is {min(missing)!r}")


def shares(layout: Layout, *, chunk_bytes: int = CHUNK_BYTES) -> dict[str, Share]:
    """The parts that each rank of a trainer publishes. Parts that several ranks have are divided among them.

    Args:
        layout: the trainer's layout.
        chunk_bytes: most bytes of a chunk of the version.
    """
    plan = reshard_plan(layout, Layout.replicated(layout.tensors, [_RELAY]))
    parcels = {rank: message(plan, rank, _RELAY) for rank in sorted(layout.shards) if (rank, _RELAY) in plan.pairs}
    room = max(parcel.nbytes + ALIGNMENT * len(parcel.moves) for parcel in parcels.values())
    pieces = -(-room // chunk_bytes)
    chunk_bytes = min(
        chunk_bytes, aligned(-(-room // pieces))
    )  # all begin anew at each rank: its last one is nearly full
    # Tensors without elements have no place in a plan, and take none in the version.
    specs = [TensorSpec(name, dtype, shape, 0, 0) for name, dtype, shape in layout.tensors if 0 in shape]
    found: dict[str, tuple[dict[str, list[tuple[TensorSpec, SliceCopy]]], Mapping[str, int], int, int]] = {}
    end = 0
    for rank in sorted(layout.shards):
        start = -(-end // chunk_bytes) * chunk_bytes
        moves: dict[str, list[tuple[TensorSpec, SliceCopy]]] = {}
        sizes: Mapping[str, int] = {}
        if (parcel := parcels.get(rank)) is not None:
            sizes, end = parcel.source_bytes, start
            for move in parcel.moves:
                tensor = layout.tensor[move.slice.tensor]
                first = tuple(begin for begin, _ in move.slice.box)
                name = f"{tensor.name}[{','.join(f'{a}:{b}' for a, b in move.slice.box)}]"
                part = Part(tensor.name, tensor.shape, first)
                spec = TensorSpec(name, tensor.dtype, move.extent, aligned(end), move.slice.nbytes, part)
                end = spec.offset + spec.nbytes
                specs.append(spec)
                moves.setdefault(move.source.buffer, []).append((spec, move))
        found[rank] = (moves, sizes, start // chunk_bytes, -(-end // chunk_bytes) if moves else start // chunk_bytes)
    manifest = Manifest(0, 0, chunk_bytes, end, tuple(specs))
    Manifest.from_wire(manifest.to_wire())
    return {
        rank: Share(manifest, {name: tuple(held) for name, held in moves.items()}, sizes, first, last)
        for rank, (moves, sizes, first, last) in found.items()
    }
