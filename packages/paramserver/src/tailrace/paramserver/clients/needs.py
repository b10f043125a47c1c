"""The parts of versions that one rank of a reader needs, computed once for all versions of one layout.

layout of the version ──reshard plan──► boxes that this rank needs, and the parts that they lie in ──► Selection
layout of the reader  ──┘
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tailrace.paramserver.layout.boxes import Box, contains, extent, volume
from tailrace.paramserver.layout.reshard_plan import reshard_plan
from tailrace.paramserver.layout.sharding import GlobalTensor, Layout, LocalBuffer, Piece, Shard
from tailrace.paramserver.layout.strided import copy_box, dense_strides
from tailrace.paramserver.manifest import DTYPES, Manifest, TensorSpec

_RELAY, _READER = "the relay", "the reader"


@dataclass(frozen=True)
class Selection:
    """The parts of a version that are read.

    Args:
        manifest: the version, or another one of the same layout.
        slices: for each tensor of which something is needed, boxes of it and the specs that they lie in.
        tensors: the tensors of the version, by name.
    """

    manifest: Manifest
    slices: Mapping[str, tuple[tuple[TensorSpec, Box], ...]]
    tensors: Mapping[str, GlobalTensor]

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """The chunks that hold any of it."""
        return self.chunks_of(self.slices)

    def chunks_of(self, names: Iterable[str]) -> tuple[int, ...]:
        """The chunks that hold any of these tensors."""
        size, found = self.manifest.chunk_bytes, set[int]()
        for spec, box in (item for name in names for item in self.slices[name] if item[0].nbytes):
            first, last = _span(spec, box)
            found.update(range((spec.offset + first) // size, -(-(spec.offset + last) // size)))
        return tuple(sorted(found))

    def whole(self, name: str) -> TensorSpec | None:
        """The spec of a tensor that lies in one piece and is needed as it is."""
        (spec, box), *others = self.slices[name]
        return spec if not others and spec.part is None and box == spec.box else None

    def assemble(self, name: str, view: memoryview, memory: Any) -> None:
        """Write the needed parts of a tensor to their places in memory of its size; the rest is left as it is.

        Args:
            view: the version's bytes.
            memory: bytes, or a flat torch tensor of them.
        """
        tensor = self.tensors[name]
        if 0 in tensor.shape:
            return
        itemsize = DTYPES[tensor.dtype]
        strides = dense_strides(tensor.shape, itemsize)
        for spec, box in self.slices[name]:
            dense = dense_strides(spec.shape, itemsize)
            target = sum(begin * step for (begin, _), step in zip(box, strides, strict=True))
            copy_box(view, spec.offset + _span(spec, box)[0], dense, memory, target, strides, extent(box), itemsize)

    def left_out(self, name: str) -> tuple[Any, ...] | None:
        """A key of the bytes of a tensor that are never written; None if all are needed. Equal keys leave out equal bytes."""
        tensor = self.tensors[name]
        boxes = tuple(box for _, box in self.slices[name])
        if sum(map(volume, boxes)) == math.prod(tensor.shape):
            return None
        return (tensor.dtype, tensor.shape, boxes)


class Needs:
    """The parts of versions that a rank needs.

    Args:
        layout: makes the reader's layout of the tensors of a version; None needs all of each.
        rank: the rank that reads.
    """

    def __init__(self, layout: Callable[[tuple[GlobalTensor, ...]], Layout] | None = None, rank: str = _READER) -> None:
        self._layout = layout or (lambda tensors: Layout.replicated(tensors, [rank]))
        self._rank = rank
        self._kept: Selection | None = None
        #: How many plans were made.
        self.made = 0

    def of(self, manifest: Manifest) -> Selection:
        """The parts to read of a version: the same as for the previous version, if the layout is the same.

        Raises:
            LayoutInvalid: its parts do not make up whole tensors, each once.
            LayoutMismatch: the reader's layout is of other tensors.
        """
        if self._kept is None or not self._kept.manifest.same_layout(manifest):
            source, specs = _layout(manifest)
            plan = reshard_plan(source, self._layout(source.tensors))
            slices: dict[str, list[tuple[TensorSpec, Box]]] = {}
            for number in plan.pairs.get((_RELAY, self._rank), ()):
                piece = plan.slices[number]
                spec = next(spec for spec in specs[piece.tensor] if contains(spec.box, piece.box))
                slices.setdefault(piece.tensor, []).append((spec, piece.box))
            for name, tensor in source.tensor.items():
                if 0 in tensor.shape:  # a plan moves nothing of it
                    slices[name] = [(specs[name][0], specs[name][0].box)]
            # In order of publication: those of a checkpoint's file, for readers that expect it.
            found = {name: tuple(slices[name]) for name in specs if name in slices}
            self._kept = Selection(manifest, found, source.tensor)
            self.made += 1
        return self._kept


def _layout(manifest: Manifest) -> tuple[Layout, dict[str, list[TensorSpec]]]:
    tensors: dict[str, GlobalTensor] = {}
    specs: dict[str, list[TensorSpec]] = {}
    buffers = []
    for spec in manifest.tensors:
        name, whole = (spec.name, spec.shape) if spec.part is None else (spec.part.tensor, spec.part.whole)
        tensors.setdefault(name, GlobalTensor(name, spec.dtype, whole))
        specs.setdefault(name, []).append(spec)
        pieces = (Piece(name, spec.box, (0,) * len(spec.shape)),) if spec.nbytes else ()
        buffers.append(LocalBuffer(spec.name, spec.dtype, spec.shape, pieces))
    return Layout(tuple(tensors.values()), {_RELAY: Shard(tuple(buffers))}), specs


def _span(spec: TensorSpec, box: Box) -> tuple[int, int]:
    """The first and the last byte of a spec that a box of it touches."""
    strides = dense_strides(spec.shape, DTYPES[spec.dtype])
    inside = [(begin - start, end - 1 - start) for (begin, end), (start, _) in zip(box, spec.box, strict=True)]
    first = sum(begin * step for (begin, _), step in zip(inside, strides, strict=True))
    last = sum(end * step for (_, end), step in zip(inside, strides, strict=True))
    return first, last + DTYPES[spec.dtype]
