"""The part of each version that one trainer rank publishes: only its own shards.

layout of the backend ──► share of this rank ──► weights of a version: buffer by buffer, one at a time
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace.paramserver import Share, shares
from tailrace.paramserver.codec.cast import matrices
from tailrace.paramserver.layout import Layout
from tailrace.pipeline.errors import RoleError
from tailrace.pipeline.roles.transfer import WeightTransfer

_VERSIONS_OF_ONE_LIFE = 2**40


class Shards:
    """This rank's part of the trainer's publications.

    Args:
        backend: the trainer backend; its `layout` and `shards` are used, see `tailrace.trainer.TrainerWorker`.
        transfer: the transport and codec.
        rank: this process's rank.
        incarnation: counts the trainer's starts. With it, ranks agree on the order of publications without messages.
    """

    def __init__(self, backend: Any, transfer: WeightTransfer, rank: int, incarnation: int) -> None:
        self._backend, self._rank = backend, f"rank{rank}"
        self._bf16 = transfer.codec == "bf16"
        layout: Layout = backend.layout()
        self.layout = layout.in_dtypes(lambda tensor: self._dtype(tensor.name, tensor.dtype, tensor.shape))
        self.share: Share = shares(self.layout)[self._rank]
        self._stamp = incarnation * _VERSIONS_OF_ONE_LIFE

    def stamp(self) -> int:
        """The stamp of the next publication. Call it exactly once for each publication, on every rank."""
        self._stamp += 1
        return self._stamp

    def weights(self, held: Path | None) -> Iterator[tuple[str, Any]]:
        """This rank's buffers of the weights.

        Args:
            held: a model directory whose weights are taken instead of the trained ones; None for the trained ones.

        Raises:
            RoleError: the directory has another model.
        """
        for name, tensor in self._backend.shards() if held is None else self._of(held):
            dtype = str(tensor.dtype).removeprefix("torch.")
            yield name, tensor.bfloat16() if self._dtype(name, dtype, tuple(tensor.shape)) != dtype else tensor

    def _dtype(self, name: str, dtype: str, shape: tuple[int, ...]) -> str:
        """The dtype in which a tensor or a part of it is published."""
        return "bfloat16" if self._bf16 and matrices(name, dtype, shape) else dtype

    def _of(self, directory: Path) -> Iterator[tuple[str, Any]]:
        from tailrace.trainer import load_weights_file

        pieces = self.layout.shards[self._rank].pieces
        for name, tensor in load_weights_file(directory):
            if name not in (known := self.layout.tensor) or tuple(tensor.shape) != known[name].shape:
                raise RoleError(
                    f"{directory}: found the tensor {name!r} of shape {list(tensor.shape)}, expected one of the run's"
                )
            for buffer, piece in pieces.get(name, ()):
                local = tensor.new_empty(buffer.shape)
                at = zip(piece.at, piece.box, strict=True)
                local[tuple(slice(first, first + end - begin) for first, (begin, end) in at)] = tensor[
                    tuple(slice(begin, end) for begin, end in piece.box)
                ]
                yield buffer.name, local
