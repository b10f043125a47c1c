"""A fingerprint of a model's weights that depends on nothing but names, types, shapes and bits. No torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

from tailrace.trainer.errors import CheckpointError

_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000  # as the format allows
_BLOCK_BYTES = 1 << 22


def weights_sha256(directory: str | Path) -> str:
    """SHA-256 over the tensors of a Hugging Face model directory, by name: equal for one file and for several.

    Raises:
        CheckpointError: there are no ``model*.safetensors``, or one is damaged.
    """
    files = sorted(Path(directory).glob("model*.safetensors"))
    if not files:
        raise CheckpointError(f"found no model.safetensors in {directory}, expected a model directory")
    lines: dict[str, str] = {}
    for path in files:
        try:
            with path.open("rb") as file:
                lines |= {name: _line(file, name, about) for name, about in _header(file)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
    return hashlib.sha256("".join(lines[name] for name in sorted(lines)).encode()).hexdigest()


def _header(file: BinaryIO) -> list[tuple[str, dict[str, Any]]]:
    """The tensors of a safetensors file, with their places counted from the file's beginning."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if not 0 < length <= _MOST_HEADER_BYTES:
        raise ValueError(f"found a header of {length} bytes")
    first = _LENGTH_BYTES + length
    found = json.loads(file.read(length))
    found.pop("__metadata__", None)
    return [
        (name, {**about, "data_offsets": [first + place for place in about["data_offsets"]]})
        for name, about in found.items()
    ]


def _line(file: BinaryIO, name: str, about: dict[str, Any]) -> str:
    begin, end = about["data_offsets"]
    digest = hashlib.sha256()
    file.seek(begin)
    while begin < end:
        block = file.read(min(_BLOCK_BYTES, end - begin))
        if not block:
            raise ValueError(f"the bytes of {name!r} end too early")
        digest.update(block)
        begin += len(block)
    return f"{name} {about['dtype']} {list(about['shape'])} {digest.hexdigest()}\n"
