"""The files of a model directory: whether they are complete, so that a broken download is found before any role starts.

Importing it needs no torch.
"""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

from tailrace.pipeline.errors import ConfigError
from tailrace.trainer.errors import ModelError
from tailrace.trainer.weights_file import read_config

KEY = "key 'model.path'"
_LENGTH_BYTES = 8


def check_model(directory: Path) -> None:
    """Check the configuration, the tokenizer and the size of every weights file.

    Raises:
        ConfigError: a file is missing, cut short or damaged.
    """
    for name in ("config.json", "tokenizer.json"):
        _json(directory / name)
    for path in _weights(directory):
        _tensors(path)


def readable_config(directory: Path) -> dict[str, Any]:
    """The Hugging Face config of a model's directory; empty if it cannot be read, which `check_model` reports."""
    with contextlib.suppress(ModelError):
        return read_config(directory)
    return {}


def count_parameters(directory: Path) -> int:
    """The number of parameters in a model's files. A tied one counts once.

    Raises:
        ConfigError: a file is missing, cut short or damaged.
    """
    return sum(math.prod(tensor["shape"]) for path in _weights(directory) for tensor in _tensors(path))


def _weights(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        weight_map = _json(index).get("weight_map")
        files = sorted({str(name) for name in weight_map.values()}) if isinstance(weight_map, dict) else []
    else:
        files = sorted(path.name for path in directory.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{KEY}: found no weights in {str(directory)!r}, expected *.safetensors")
    return [directory / name for name in files]


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{KEY}: found no readable {str(path)!r}, expected a Hugging Face model directory") from error
    except ValueError as error:
        raise ConfigError(f"{KEY}: {str(path)!r} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{KEY}: {str(path)!r} holds a {type(content).__name__}, expected an object")
    return content


def _tensors(path: Path) -> list[dict[str, Any]]:
    """A file's tensors: the header's length in 8 bytes, a JSON header, and as many bytes of tensors as the header says."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            size = path.stat().st_size
            header = file.read(length) if length <= size - _LENGTH_BYTES else None
    except FileNotFoundError as error:
        raise ConfigError(f"{KEY}: {str(path)!r} is missing, and the index names it") from error
    if header is None:
        raise ConfigError(f"{KEY}: {str(path)!r} is cut short or no safetensors file ({size} bytes)")
    try:
        tensors = [tensor for name, tensor in json.loads(header).items() if name != "__metadata__"]
        ends = [tensor["data_offsets"][1] for tensor in tensors]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{KEY}: {str(path)!r} is damaged: its header is no list of tensors") from error
    expected = _LENGTH_BYTES + length + max(ends, default=0)
    if size != expected:
        raise ConfigError(f"{KEY}: {str(path)!r} is damaged: found {size} bytes, expected {expected}")
    return tensors
