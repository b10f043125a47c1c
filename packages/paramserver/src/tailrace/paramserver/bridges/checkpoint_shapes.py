"""Names and shapes in a Hugging Face model directory: what a version for an engine of that model must hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

from tailrace.paramserver.clients.lease_view import WeightLease
from tailrace.paramserver.errors import WeightsMismatch

_HEADER_CEILING_BYTES = 100 << 20
_OUTPUT_LAYER = "lm_head.weight"  # the embedding itself in a model with tied embeddings


def checkpoint_shapes(model_path: str) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor in the directory's safetensors files; empty where there are none.

    Raises:
        WeightsMismatch: a file is there and cannot be read.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(Path(model_path).glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                shapes |= _header(file)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WeightsMismatch(f"cannot read the tensor names of {path}: {type(error).__name__}: {error}") from error
    return shapes


def check_complete(weights: WeightLease, shapes: dict[str, tuple[int, ...]], *, tied_embeddings: bool) -> None:
    """Compare a version with a checkpoint's names and shapes. An engine casts, so dtypes may differ.

    Raises:
        WeightsMismatch: a tensor is missing, unknown or of another shape.
    """
    specs = weights.tensors
    stored = {name: name for name in specs} | dict(weights.tied)
    if not shapes:
        return
    optional = {_OUTPUT_LAYER} if tied_embeddings else set()
    missing, unknown = shapes.keys() - stored.keys() - optional, stored.keys() - shapes.keys() - optional
    for names, what in ((missing, "lacks"), (unknown, "has and the engine's model lacks")):
        if names:
            raise WeightsMismatch(f"version {weights.version} {what} {len(names)} tensors, the first is {min(names)!r}")
    for name, source in stored.items():
        if name in shapes and specs[source].shape != shapes[name]:
            raise WeightsMismatch(
                f"{name!r}: found the shape {list(specs[source].shape)} in version {weights.version}, "
                f"expected {list(shapes[name])} as in the engine's checkpoint"
            )


def engine_names(weights: WeightLease, *, tied_embeddings: bool) -> list[tuple[str, str]]:
    """Names to hand an engine, and the stored tensor of each.

    A tied tensor goes under all of its names, but for the output layer of a model with tied embeddings: engines skip
    that one, so its data must go under another name.
    """
    pairs = [(name, name) for name in weights] + list(weights.tied.items())
    if tied_embeddings and len(pairs) > 1:
        others = [pair for pair in pairs if not pair[0].endswith(_OUTPUT_LAYER)]
        if {stored for _, stored in others} == set(weights):
            return others
    return pairs


def _header(file: BinaryIO) -> dict[str, tuple[int, ...]]:
    # safetensors: eight bytes with the length of a JSON object, then that object, then the data
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= _HEADER_CEILING_BYTES:
        raise ValueError(f"found a safetensors header of {length} bytes, the file is damaged")
    header = json.loads(file.read(length))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
