"""What a checkpoint directory holds, and how one becomes complete. No torch.

    config.json, tokenizer files    copied from the model's directory
    model.safetensors               the weights, Hugging Face names
    state-R-of-N.safetensors        rank R's shards of parameters and moments, its random state
    trainer.json                    version, steps, and size and CRC-32 of every file above

It is written under a hidden name, synced, and renamed: a directory of the right name is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

from tailrace.trainer.errors import CheckpointError

MANIFEST = "trainer.json"
FORMAT = 1
_NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")


def partial_directory(directory: Path) -> Path:
    """Where `directory` grows until it is complete."""
    return directory.parent / f".{directory.name}.partial"


def checkpoints(root: str | Path) -> dict[int, Path]:
    """The complete checkpoints below a directory, by version in ascending order. Half-written ones are not among them."""
    found: dict[int, Path] = {}
    for manifest in Path(root).glob(f"*/{MANIFEST}"):
        if not manifest.parent.name.startswith("."):
            found[int(read_manifest(manifest.parent)["version"])] = manifest.parent
    return dict(sorted(found.items()))


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises:
        CheckpointError: there is none, or it is not one of ours.
    """
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"found no {MANIFEST} in {directory}, expected a complete checkpoint") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}; use another checkpoint") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not of format {FORMAT}; it was made by another version of this library")
    return manifest


def verify(directory: Path, manifest: dict[str, Any]) -> None:
    """Compare every file with the manifest.

    Raises:
        CheckpointError: a file is missing or differs.
    """
    for name, expected in manifest["files"].items():
        path = directory / name
        if not path.is_file():
            raise CheckpointError(f"found no {name} in {directory}; the checkpoint is damaged, use another")
        found = fingerprint(path)
        if found != expected:
            raise CheckpointError(f"{path}: found {found}, expected {expected}; it is damaged, use another checkpoint")


def fingerprint(path: Path) -> dict[str, int]:
    """Size in bytes and CRC-32 of a file."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return {"bytes": path.stat().st_size, "crc32": crc}


def copy_model_files(source: Path, destination: Path, dtype: str) -> None:
    """Copy configuration and tokenizer of a model directory, not its weights, and set the dtype of its weights."""
    for path in sorted(source.iterdir()):
        weights = path.suffix in _NOT_COPIED or path.name.endswith(".index.json")
        if path.is_file() and not weights and path.name != MANIFEST and not path.name.startswith("."):
            shutil.copyfile(path, destination / path.name)
    config_path = destination / "config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    config_path.write_text(json.dumps(config | {"dtype": dtype}, indent=2) + "\n", encoding="utf-8")


def sync(path: Path) -> None:
    """Force a file or the entries of a directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def complete(partial: Path, directory: Path, manifest: dict[str, Any]) -> None:
    """Describe and sync every file of `partial`, then rename it to `directory`, in place of what was there."""
    files = sorted(path for path in partial.iterdir() if path.name != MANIFEST)
    for path in files:
        sync(path)
    described = manifest | {"format": FORMAT, "files": {path.name: fingerprint(path) for path in files}}
    path = partial / MANIFEST
    path.write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    sync(path)
    sync(partial)
    put_in_place(partial, directory)


def put_in_place(partial: Path, directory: Path) -> None:
    """Rename a finished directory to its name. At no moment does a half-written one bear that name."""
    replaced = directory.parent / f".{directory.name}.replaced"
    if directory.exists():
        if replaced.exists():
            shutil.rmtree(replaced)
        directory.rename(replaced)
    partial.rename(directory)
    sync(directory.parent)
    if replaced.exists():
        shutil.rmtree(replaced)
