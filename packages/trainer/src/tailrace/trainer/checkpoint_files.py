"""The files of a checkpoint directory, and how one is completed. No torch.

    config.json, tokenizer files    copied from the model's directory
    model.safetensors               the weights, Hugging Face names; of several ranks model-R-of-N.safetensors and an index
    state-R-of-N.safetensors        rank R's shards of parameters and moments, the critic's too, its random state; not where
                                    weights stand alone
    trainer.json                    version, steps, and of every file above its size and the XXH3 of each MiB

A checkpoint is written under a hidden name, synced, and renamed. So a directory with its final name is complete. While it is
written, each rank says what it has written in written-R-of-N.json, and rows-R-of-N.safetensors may hold rows of weights that
ranks put together.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from tailrace.trainer.errors import CheckpointError

MANIFEST = "trainer.json"
FORMAT = 2
_READS = (1, FORMAT)
CHUNK_BYTES = 1 << 20
"""Bytes that have a checksum of their own, so that part of a file can be read and checked."""
_DIGITS = 16  # of a checksum, in hexadecimal
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


def rows_file(rank: int, world_size: int) -> str:
    """The name of a rank's rows of the weights, which exist while a checkpoint of weights alone is written."""
    return f"rows-{rank:05d}-of-{world_size:05d}.safetensors"


def written_file(rank: int, world_size: int) -> str:
    """The name of the file in which a rank says that it is done, with the fingerprints of what it has written."""
    return f"written-{rank:05d}-of-{world_size:05d}.json"


def is_state(name: str) -> bool:
    """Whether a file of a checkpoint has a rank's state."""
    return name.startswith("state-") and name.endswith(".safetensors")


def is_weights(name: str) -> bool:
    """Whether a file of a checkpoint has weights."""
    return name.endswith(".safetensors") and not is_state(name)


def checkpoints(root: str | Path, *, full: bool = False) -> dict[int, Path]:
    """The checkpoints in a directory that look complete, by version in ascending order.

    Checkpoints are left out if they are half-written, if their manifest cannot be read, or if a file is missing or has the
    wrong size. Checksums are compared only when a checkpoint is loaded.

    Args:
        root: the directory.
        full: leave out those that have weights alone, from which no trainer can go on.
    """
    found: dict[int, Path] = {}
    for path in sorted(Path(root).glob(f"*/{MANIFEST}")):
        if path.parent.name.startswith("."):
            continue
        try:
            manifest = read_manifest(path.parent)
            check_sizes(path.parent, manifest)
        except CheckpointError as error:
            logger.warning("left a checkpoint out: %s", error)
        else:
            if not full or has_state(manifest):
                found[manifest["version"]] = path.parent
    return dict(sorted(found.items()))


def has_state(manifest: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has the optimizer's state beside the weights."""
    return bool(manifest.get("full", True))


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
    if not isinstance(manifest, dict) or manifest.get("format") not in _READS:
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
    check_sizes(directory, manifest)
    for name, expected in manifest["files"].items():
        verify_file(directory / name, expected)
    return manifest


def verify_file(path: Path, expected: Mapping[str, Any]) -> None:
    """Compare a whole file with its fingerprint.

    Raises:
        CheckpointError: it differs, or cannot be read.
    """
    try:
        found = fingerprint(path, Sums.like(expected))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; use another checkpoint") from error
    compare(path, found, expected)


def compare(path: Path, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compare two fingerprints of a file.

    Raises:
        CheckpointError: they differ.
    """
    if found == expected:
        return
    if "xxh3" not in expected or found["bytes"] != expected["bytes"]:
        raise _damaged(path, found, expected)
    for number in range(len(expected["xxh3"]) // _DIGITS):
        compare_chunk(path, number, chunk_sum(found, number), expected)


def compare_chunk(path: Path, number: int, found: str, expected: Mapping[str, Any]) -> None:
    """Compare the checksum of one chunk of a file.

    Raises:
        CheckpointError: it differs from the fingerprint's.
    """
    wanted = chunk_sum(expected, number)
    if found != wanted:
        raise CheckpointError(
            f"{path}: found xxh3 {found} of its MiB {number}, expected {wanted}; it is damaged, use another checkpoint"
        )


def chunk_sum(expected: Mapping[str, Any], number: int) -> str:
    """The checksum of a chunk in a fingerprint."""
    sums: str = expected["xxh3"]
    return sums[number * _DIGITS : (number + 1) * _DIGITS]


def _is_fingerprint(value: object) -> bool:
    return isinstance(value, dict) and value.keys() in ({"bytes", "crc32"}, {"bytes", "xxh3"})


def check_sizes(directory: Path, manifest: dict[str, Any]) -> None:
    """Compare the size of every file of a checkpoint with its manifest.

    Raises:
        CheckpointError: one is missing, or has another size.
    """
    for name, expected in manifest["files"].items():
        path = directory / name
        try:
            found = path.stat()
        except OSError:
            found = None
        if found is None or not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"found no {name} in {directory}; the checkpoint is damaged, use another")
        if found.st_size != expected["bytes"]:
            raise _damaged(path, {"bytes": found.st_size}, {"bytes": expected["bytes"]})


def _damaged(path: Path, found: Mapping[str, Any], expected: Mapping[str, Any]) -> CheckpointError:
    return CheckpointError(
        f"{path}: found {dict(found)}, expected {dict(expected)}; it is damaged, use another checkpoint"
    )


class Sums:
    """Size and checksums of the bytes of a file as they pass.

    Args:
        crc32: sum them up as format 1 did: one CRC-32 of all.
    """

    def __init__(self, *, crc32: bool = False) -> None:
        self.nbytes = 0
        self._crc: int | None = 0 if crc32 else None
        self._chunk, self._done = xxhash.xxh3_64(), list[str]()

    @classmethod
    def like(cls, expected: Mapping[str, Any]) -> Sums:
        """Sums that can be compared with a fingerprint."""
        return cls(crc32="crc32" in expected)

    def add(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        view = memoryview(data).cast("B")
        if self._crc is not None:
            self._crc, self.nbytes = zlib.crc32(view, self._crc), self.nbytes + len(view)
            return
        while view:
            part = view[: CHUNK_BYTES - self.nbytes % CHUNK_BYTES]
            self._chunk.update(part)
            self.nbytes += len(part)
            if self.nbytes % CHUNK_BYTES == 0:
                self._done.append(self._chunk.hexdigest())
                self._chunk.reset()
            view = view[len(part) :]

    def fingerprint(self) -> dict[str, Any]:
        """The size in bytes, and the checksums."""
        if self._crc is not None:
            return {"bytes": self.nbytes, "crc32": self._crc}
        last = [self._chunk.hexdigest()] if self.nbytes % CHUNK_BYTES else []
        return {"bytes": self.nbytes, "xxh3": "".join([*self._done, *last])}


def fingerprint(path: Path, sums: Sums | None = None) -> dict[str, Any]:
    """Size in bytes and checksums of a file."""
    sums = sums or Sums()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            sums.add(block)
    return sums.fingerprint()


class WriteProgress:
    """A deadline that begins anew whenever bytes of a checkpoint were written.

    Args:
        root: the directory with the checkpoints. What is written there stands below hidden directories.
        limit_s: seconds without a byte after which it has passed.
    """

    def __init__(self, root: Path, limit_s: float) -> None:
        self._root, self.limit_s = root, limit_s
        self._every_s = min(1.0, limit_s / 4)  # a count asks a file system, perhaps one that all ranks share
        self.nbytes, self._since = self._count(), time.monotonic()
        self._counted = self._since

    def passed(self) -> bool:
        """Whether no byte was written for longer than the limit. It sees progress only between two calls, so poll it."""
        now = time.monotonic()
        if now - self._counted >= self._every_s or now - self._since > self.limit_s:
            self._counted, found = now, self._count()
            if found != self.nbytes:
                self.nbytes, self._since = found, now
        return now - self._since > self.limit_s

    def _count(self) -> int:
        count = 0
        for directory in self._root.glob(".*.partial"):
            try:
                count += sum(path.stat().st_size for path in directory.iterdir())
            except OSError:  # it has been renamed, or a file in it
                continue
        return count


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


def complete(
    partial: Path, directory: Path, manifest: dict[str, Any], written: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Write the manifest of `partial`, sync every file, then rename it to `directory`, replacing an existing one.

    Args:
        partial: the directory in which the files are.
        directory: its final name.
        manifest: what the manifest says beside the files.
        written: fingerprints of files that are synced already.
    """
    known = dict(written or {})
    for path in sorted(path for path in partial.iterdir() if path.name not in (MANIFEST, *known)):
        sync(path)
        known[path.name] = fingerprint(path)
    described = manifest | {"format": FORMAT, "files": dict(sorted(known.items()))}
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
