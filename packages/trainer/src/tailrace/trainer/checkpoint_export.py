"""A checkpoint as a Hugging Face model directory: its weights in shards, its tokenizer, no state.

    checkpoint ──► plan: tensors into shards ──► bytes copied, checksums compared ──► model-R-of-N.safetensors and an index
    adapter    ──► the base's tensors, each with its adapter ──► the same                       or adapter_model.safetensors

Bytes are copied block by block, and merged tensor by tensor: a model of any size needs little memory. Only merging needs torch.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from tailrace.trainer.adapters import ADAPTER_CONFIG, Adapter, read_adapter_config
from tailrace.trainer.checkpoint_files import Sums, compare, is_state, is_weights, read_manifest, weights_file
from tailrace.trainer.errors import AdapterError, CheckpointError
from tailrace.trainer.weights_file import (
    ADAPTER_FILE,
    FileTensor,
    header_of,
    load_weights_file,
    model_files,
    read_header,
    weights_sha256,
)

SHARD_BYTES = 5_000_000_000
"""Most bytes of tensors in one file, as transformers splits a model."""
INDEX = "model.safetensors.index.json"
_BLOCK_BYTES = 1 << 22
_TORCH = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}


@dataclass(slots=True)
class _Source:
    """An open file of weights. It can be read to its end even if the run removes its checkpoint meanwhile."""

    path: Path
    file: BinaryIO
    expected: dict[str, Any] | None
    sums: Sums = field(default_factory=Sums)
    tensors: list[FileTensor] = field(default_factory=list)

    def begin(self) -> None:
        """Read the header: tensors follow it in the order of their bytes, without a gap."""
        first, found = read_header(self.file)
        self.file.seek(0)
        self.sums = Sums.like(self.expected or {})
        self.sums.add(self.file.read(first))
        at = first
        for name, about in sorted(found, key=lambda one: one[1]["data_offsets"][0]):
            begin, end = about["data_offsets"]
            if begin != at:
                raise ValueError(f"the bytes of {name!r} begin at {begin}, expected {at}")
            self.tensors.append(FileTensor(name, str(about["dtype"]), list(about["shape"]), end - begin))
            at = end

    def blocks(self, tensor: FileTensor) -> Iterator[bytes]:
        """The bytes of the next tensor."""
        left = tensor.nbytes
        while left:
            block = self.file.read(min(_BLOCK_BYTES, left))
            if not block:
                raise CheckpointError(f"{self.path} is damaged: the bytes of {tensor.name!r} end too early")
            self.sums.add(block)
            left -= len(block)
            yield block

    def check(self) -> None:
        """Compare what was read with the manifest."""
        if self.expected is None:
            return
        while rest := self.file.read(_BLOCK_BYTES):
            self.sums.add(rest)
        compare(self.path, self.sums.fingerprint(), self.expected)


class ExportSource:
    """The files of a checkpoint that a model directory consists of, all open, so that the run may go on.

    Use it as a context manager.

    Args:
        checkpoint: the directory.
        base: the base's model directory, into which the checkpoint's adapter is merged; None: the checkpoint is taken as it is.
        shard_bytes: most bytes of tensors in one file.

    Attributes:
        version: the version of the weights.
        adapter: whether the weights are an adapter's alone.
        files: the small files beside the weights, by name.
        nbytes: bytes of all tensors.
        parameters: their elements.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        AdapterError: there is no adapter to merge, or the base is another one.
    """

    def __init__(self, checkpoint: Path, *, base: Path | None = None, shard_bytes: int = SHARD_BYTES) -> None:
        manifest = read_manifest(checkpoint)
        self.version = int(manifest["version"])
        self.adapter = manifest.get("adapter") is not None and base is None
        self._merging = None if base is None else _adapter_of(checkpoint, manifest, base)
        self.files: dict[str, bytes] = {}
        self._sources: list[_Source] = []
        self._open = ExitStack()
        try:
            for name, expected in sorted(manifest["files"].items()):
                if is_weights(name) and base is not None:
                    continue
                if is_weights(name):
                    file = self._open.enter_context((checkpoint / name).open("rb"))
                    self._sources.append(_Source(checkpoint / name, file, expected))
                elif not is_state(name) and name != INDEX:
                    content = (checkpoint / name).read_bytes()
                    sums = Sums.like(expected)
                    sums.add(content)
                    compare(checkpoint / name, sums.fingerprint(), expected)
                    self.files[name] = content
            if base is not None:
                for path in model_files(base):
                    self._sources.append(_Source(path, self._open.enter_context(path.open("rb")), None))
            for source in self._sources:
                self._begin(source)
            if not self._sources:
                raise CheckpointError(f"found no model.safetensors in {checkpoint}, expected a model directory")
        except OSError as error:
            self._open.close()
            raise CheckpointError(
                f"{checkpoint}: {error.strerror} ({error.filename}); use another checkpoint"
            ) from error
        except BaseException:
            self._open.close()
            raise
        tensors = [tensor for source in self._sources for tensor in source.tensors]
        self.nbytes = sum(tensor.nbytes for tensor in tensors)
        self.parameters = sum(math.prod(tensor.shape) for tensor in tensors)
        self._shards = [tensors] if self.adapter else _shards(tensors, shard_bytes)
        if self._merging is not None:
            if lacking := self._merging.layers.keys() - {tensor.name for tensor in tensors}:
                self._open.close()
                raise AdapterError(f"found no {min(lacking)!r} in {base}, expected it: the adapter is of another model")
            del self.files[ADAPTER_CONFIG]
            self._set_dtype(tensors[0].dtype)

    def __enter__(self) -> ExportSource:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def write(self, directory: Path, progress: Callable[[int, int], None] = lambda *_: None) -> None:
        """Write the weights and the files beside them into a directory, and sync each. Call it once.

        Args:
            directory: an existing directory.
            progress: called with the bytes of tensors that are written, and all.

        Raises:
            CheckpointError: a checksum differs from the checkpoint's.
            OSError: the disk is full or broken.
        """
        for name, content in self.files.items():
            put(directory / name, content)
        blocks = self._blocks()
        done, weight_map = 0, dict[str, str]()
        for number, tensors in enumerate(self._shards):
            name = ADAPTER_FILE if self.adapter else weights_file(number, len(self._shards))
            weight_map |= {tensor.name: name for tensor in tensors}
            left = sum(tensor.nbytes for tensor in tensors)
            with (directory / name).open("wb") as file:
                file.write(header_of(tensors))
                while left:
                    block = next(blocks)
                    file.write(block)
                    left -= len(block)
                    done += len(block)
                    progress(done, self.nbytes)
                file.flush()
                os.fsync(file.fileno())
        for _ in blocks:  # the last checksum is compared behind the last block
            raise AssertionError("bytes of no tensor")
        if len(self._shards) > 1:
            index = {"metadata": {"total_size": self.nbytes}, "weight_map": weight_map}
            put(directory / INDEX, (json.dumps(index, indent=1) + "\n").encode())

    def _begin(self, source: _Source) -> None:
        try:
            source.begin()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{source.path} is damaged: {error}; use another checkpoint") from error

    def _blocks(self) -> Iterator[bytes]:
        for source in self._sources:
            for tensor in source.tensors:
                if self._merging is not None and tensor.name in self._merging.layers:
                    yield _merged(self._merging, tensor, b"".join(source.blocks(tensor)))
                else:
                    yield from source.blocks(tensor)
            source.check()

    def _set_dtype(self, dtype: str) -> None:
        """Say in the configuration what the base's tensors are, which the adapter was merged into."""
        config = json.loads(self.files["config.json"])
        self.files["config.json"] = (json.dumps(config | {"dtype": _TORCH[dtype]}, indent=2) + "\n").encode()


def _adapter_of(checkpoint: Path, manifest: dict[str, Any], base: Path) -> Adapter:
    if manifest.get("adapter") is None:
        raise AdapterError(f"{checkpoint}: found whole weights, expected an adapter to merge; leave --merge out")
    if manifest["base"]["sha256"] != (found := weights_sha256(base)):
        raise AdapterError(
            f"{base}: found weights of the digest {found}, expected the adapter's base, {manifest['base']['sha256']}"
        )
    return Adapter(dict(load_weights_file(checkpoint)), read_adapter_config(checkpoint))


def _merged(adapter: Adapter, tensor: FileTensor, content: bytes) -> bytes:
    """The bytes of a tensor of the base with its adapter."""
    import torch

    if tensor.dtype not in _TORCH:
        raise AdapterError(f"found {tensor.name!r} in {tensor.dtype}, expected one of {', '.join(_TORCH)}")
    weight = torch.frombuffer(bytearray(content), dtype=getattr(torch, _TORCH[tensor.dtype])).view(tensor.shape)
    return bytes(adapter.into(tensor.name, weight).contiguous().view(torch.uint8).numpy().data)


def put(path: Path, content: bytes) -> None:
    """Write a small file, and sync it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _shards(tensors: Sequence[FileTensor], most: int) -> list[list[FileTensor]]:
    """Tensors in their order, as many in each shard as fit; a larger one is alone."""
    shards: list[list[FileTensor]] = [[]]
    nbytes = 0
    for tensor in tensors:
        if shards[-1] and nbytes + tensor.nbytes > most:
            shards.append([])
            nbytes = 0
        shards[-1].append(tensor)
        nbytes += tensor.nbytes
    return shards
