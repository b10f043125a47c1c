"""Weights of a model directory, one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from tailrace.trainer.errors import CheckpointError


def load_weights_file(directory: str | Path) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a Hugging Face model directory or a checkpoint, under Hugging Face names, on the CPU.

    Reads ``model.safetensors``, or the files that ``model.safetensors.index.json`` names.

    Raises:
        CheckpointError: neither file exists, or a file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    root = Path(directory)
    index = root / "model.safetensors.index.json"
    if index.is_file():
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    elif (root / "model.safetensors").is_file():
        files = ["model.safetensors"]
    else:
        raise CheckpointError(f"found neither model.safetensors nor its index in {root}, expected a model directory")
    for name in files:
        try:
            with safe_open(str(root / name), framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - not a dict
                    yield key, file.get_tensor(key)
        except (SafetensorError, FileNotFoundError) as error:
            raise CheckpointError(f"{root / name} is damaged or missing: {error}") from error
