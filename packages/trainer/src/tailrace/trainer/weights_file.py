"""Weights of a model directory, one tensor at a time, and their digest. Importing it needs no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tailrace.trainer.errors import CheckpointError, ModelError

if TYPE_CHECKING:
    from torch import Tensor

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def load_weights_file(directory: str | Path) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a Hugging Face model directory or a checkpoint, under Hugging Face names, on the CPU.

    Reads ``adapter_model.safetensors``, which is all that a checkpoint with an adapter has, or ``model.safetensors``, or the
    files that ``model.safetensors.index.json`` names.

    Raises:
        CheckpointError: neither file exists, or a file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    root = Path(directory)
    for path in [root / ADAPTER_FILE] if (root / ADAPTER_FILE).is_file() else model_files(root):
        try:
            with safe_open(str(path), framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - not a dict
                    yield key, file.get_tensor(key)
        except (SafetensorError, FileNotFoundError) as error:
            raise CheckpointError(f"{path} is damaged or missing: {error}") from error


def read_config(directory: Path) -> dict[str, Any]:
    """The ``config.json`` of a model directory.

    Raises:
        ModelError: there is none, or it cannot be read.
    """
    path = directory / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"found no readable config.json in {directory}, expected a model directory: {error}"
        ) from error
    if not isinstance(found, dict):
        raise ModelError(f"found no settings in {path}, expected a model's")
    return found


def has_weights_file(directory: str | Path) -> bool:
    """Whether a directory has ``model.safetensors`` or its index."""
    return any((Path(directory) / name).is_file() for name in (_INDEX, _SINGLE))


def tensors_of_files(directory: str | Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The file of each tensor of a model directory, and its dtype, shape and place (``data_offsets`` in the file).

    Raises:
        CheckpointError: there is no file of weights, or one is damaged.
    """
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in model_files(Path(directory)):
        try:
            with path.open("rb") as file:
                found |= {name: (path, about) for name, about in read_header(file)[1]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged or missing: {error}") from error
    return found


def model_files(root: Path) -> list[Path]:
    """The files of a whole model's weights.

    Raises:
        CheckpointError: there are none.
    """
    if (root / _INDEX).is_file():
        named = json.loads((root / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        return [root / name for name in sorted(set(named))]
    if (root / _SINGLE).is_file():
        return [root / _SINGLE]
    raise CheckpointError(f"found neither {_SINGLE} nor its index in {root}, expected a model directory")


ADAPTER_FILE = "adapter_model.safetensors"
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000  # as the format allows
_BLOCK_BYTES = 1 << 22


def weights_sha256(directory: str | Path) -> str:
    """SHA-256 over the tensors of a Hugging Face model directory, by name: equal for one file and for several.

    Raises:
        CheckpointError: there are no ``model*.safetensors``, or one is damaged.
    """
    root = Path(directory)
    files = [root / ADAPTER_FILE] if (root / ADAPTER_FILE).is_file() else sorted(root.glob("model*.safetensors"))
    if not files:
        raise CheckpointError(f"found no model.safetensors in {directory}, expected a model directory")
    lines: dict[str, str] = {}
    for path in files:
        try:
            with path.open("rb") as file:
                lines |= {name: _line(file, name, about) for name, about in read_header(file)[1]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
    return hashlib.sha256("".join(lines[name] for name in sorted(lines)).encode()).hexdigest()


def tensor_shapes(directory: str | Path) -> dict[str, tuple[int, ...]]:
    """The shapes of a model directory's tensors, by name.

    Raises:
        CheckpointError: there is no file of weights, or one is damaged.
    """
    return {name: tuple(about["shape"]) for name, (_, about) in tensors_of_files(directory).items()}


def read_header(file: BinaryIO) -> tuple[int, list[tuple[str, dict[str, Any]]]]:
    """Where the bytes of a safetensors file begin, and its tensors, with their places counted from the file's beginning.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it is no such file.
    """
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if not 0 < length <= _MOST_HEADER_BYTES:
        raise ValueError(f"found a header of {length} bytes")
    first = _LENGTH_BYTES + length
    found = json.loads(file.read(length))
    found.pop("__metadata__", None)
    return first, [
        (name, {**about, "data_offsets": [first + place for place in about["data_offsets"]]})
        for name, about in found.items()
    ]


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor of a safetensors file: `dtype` is the format's name, such as F32."""

    name: str
    dtype: str
    shape: list[int]
    nbytes: int


def header_of(tensors: Sequence[FileTensor]) -> bytes:
    """The beginning of a safetensors file, behind which the bytes of these tensors follow in this order, without a gap."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


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
