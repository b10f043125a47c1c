"""The files of a checkpoint directory, and how one is completed. No torch.

    config.json, tokenizer files    copied from the model's directory
    model.safetensors               the weights, Hugging Face names; of several ranks model-R-of-N.safetensors and an index
    state-R-of-N.safetensors        rank R's shards of parameters and moments, the critic's too, its random state
    trainer.json                    version, steps, and size and CRC-32 of every file above

A checkpoint is written under a hidden name, synced, and renamed. So a directory with its final name is complete.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import zlib
from pathlib import Path
from typing import Any

from tailrace.trainer.errors import CheckpointError

MANIFEST = "trainer.json"
FORMAT = 1
logger = logging.getLogger(__name__)
_NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")


def partial_directory(directory: Path) -> Path:
    """The hidden directory in which the files of `directory` are written."""
    return directory.parent / f".{directory.name}.partial"


def state_file(rank: int, world_size: int) -> str:
    """The name of the file with a rank's state."""
    return f"state-{rank:05d}-of-{world_size:05d}.safetensors"


def weights_file(rank: int, world_size: int) -> str:
    """The name of the file with the full weights that a rank writes."""
    return "model.safetensors" if world_size == 1 else f"model-{rank + 1:05d}-of-{world_size:05d}.safetensors"


def is_state(name: str) -> bool:
    """Whether a file of a checkpoint has a rank's state."""
    return name.startswith("state-") and name.endswith(".safetensors")


def is_weights(name: str) -> bool:
    """Whether a file of a checkpoint has weights."""
    return name.endswith(".safetensors") and not is_state(name)


def checkpoints(root: str | Path) -> dict[int, Path]:
    """The checkpoints in a directory that look complete, by version in ascending order.

    Checkpoints are left out if they are half-written, if their manifest cannot be read, or if a file is missing or has the
    wrong size. Checksums are compared only when a checkpoint is loaded.
    """
    found: dict[int, Path] = {}
    for path in sorted(Path(root).glob(f"*/{MANIFEST}")):
        if path.parent.name.startswith("."):
            continue
        try:
            manifest = read_manifest(path.parent)
            _check_sizes(path.parent, manifest)
        except CheckpointError as error:
            logger.warning("left a checkpoint out: %s", error)
        else:
            found[manifest["version"]] = path.parent
    return dict(sorted(found.items()))


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a checkpoint: its version, its files and other metadata.

    Raises:
        CheckpointError: the manifest is missing, damaged or of another format.
    """
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"found no {MANIFEST} in {directory}, expected a complete checkpoint") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}; use another checkpoint") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not of format {FORMAT}; it was made by another version of this library")
    version, files = manifest.get("version"), manifest.get("files")
    if not isinstance(version, int) or not isinstance(files, dict) or not all(map(_is_fingerprint, files.values())):
        raise CheckpointError(f"{path} is damaged: found no version or no files in it; use another checkpoint")
    return manifest


def verify(directory: Path) -> dict[str, Any]:
    """Compare every file of a checkpoint with its manifest, and return the manifest.

    Raises:
        CheckpointError: a file is missing or differs, or the manifest is missing or damaged.
    """
    manifest = read_manifest(directory)
    _check_sizes(directory, manifest)
    for name, expected in manifest["files"].items():
        path = directory / name
        try:
            found = fingerprint(path)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}; use another checkpoint") from error
        if found != expected:
            raise _damaged(path, found, expected)
    return manifest


def _is_fingerprint(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {"bytes", "crc32"}


def _check_sizes(directory: Path, manifest: dict[str, Any]) -> None:
    for name, expected in manifest["files"].items():
        path = directory / name
        try:
            found = path.stat()
        except OSError:
            found = None
        if found is None or not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"found no {name} in {directory}; the checkpoint is damaged, use another")
        if found.st_size != expected["bytes"]:
            raise _damaged(path, {"bytes": found.st_size}, expected)


def _damaged(path: Path, found: dict[str, int], expected: dict[str, int]) -> CheckpointError:
    return CheckpointError(f"{path}: found {found}, expected {expected}; it is damaged, use another checkpoint")


def fingerprint(path: Path) -> dict[str, int]:
    """Size in bytes and CRC-32 of a file."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return {"bytes": path.stat().st_size, "crc32": crc}


def copy_model_files(source: Path, destination: Path, dtype: str) -> None:
    """Copy the configuration and tokenizer of a model directory, without weights, and set the dtype in the configuration."""
    for path in sorted(source.iterdir()):
        weights = path.suffix in _NOT_COPIED or path.name.endswith(".index.json")
        if path.is_file() and not weights and path.name != MANIFEST and not path.name.startswith("."):
            shutil.copyfile(path, destination / path.name)
    config_path = destination / "config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    config_path.write_text(json.dumps(config | {"dtype": dtype}, indent=2) + "\n", encoding="utf-8")


def sync(path: Path) -> None:
    """Force a file, or a directory's list of entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def complete(partial: Path, directory: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of `partial`, sync every file, then rename it to `directory`, replacing an existing one."""
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
    """Rename a finished directory to its final name. At no moment does a half-written directory have that name."""
    replaced = directory.parent / f".{directory.name}.replaced"
    if directory.exists():
        if replaced.exists():
            shutil.rmtree(replaced)
        directory.rename(replaced)
    partial.rename(directory)
    sync(directory.parent)
    if replaced.exists():
        shutil.rmtree(replaced)
