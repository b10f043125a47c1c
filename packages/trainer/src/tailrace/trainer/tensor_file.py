"""Files of tensors, written from and read into one copy in host memory; checksums are taken of the bytes as they pass.

tensors ──copy──► HostCopy ──a MiB at a time──► checksum, disk          the copy is the file, but for its header
disk ──a MiB at a time──► checksum compared ──► HostCopy ──copy──► tensors
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from tailrace.trainer.checkpoint_files import CHUNK_BYTES, Sums, compare_chunk, verify_file
from tailrace.trainer.errors import CheckpointError
from tailrace.trainer.weights_file import FileTensor, header_of, read_header

_KINDS = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.uint8: "U8",
    torch.int64: "I64",
}
_DTYPES = {name: dtype for dtype, name in _KINDS.items()}
_SYNC_BYTES = 1 << 28
"""Bytes that are written between two syncs: what is waited for is then the disk, and its progress can be seen."""


class HostCopy:
    """Memory for one copy of a rank's state. It grows to the largest and stays; saves and loads take it in turns.

    Args:
        pinned: whether devices copy to and from it: its pages are then locked.
    """

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that it takes."""
        return int(self._memory.numel())

    def take(self, late: Callable[[], bool], poll_s: float = 0.01) -> bool:
        """Wait until nobody has it. Returns False if `late` says so before."""
        while not self._lock.acquire(blocking=False):
            if late():
                return False
            time.sleep(poll_s)
        return True

    def give_back(self) -> None:
        """Let others have it. Any thread may call it."""
        self._lock.release()

    def reserve(self, nbytes: int) -> Tensor:
        """Its memory, grown to at least this size. What it held stays."""
        if nbytes > self.nbytes:
            held, self._memory = self._memory, host_memory(nbytes, pinned=self._pinned)
            self._memory[: held.numel()].copy_(held)
        return self._memory

    def fill(self, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None = None) -> list[FileTensor]:
        """Copy tensors of any device into it, one behind the other.

        Args:
            tensors: name and tensor; each is valid until the next is taken.
            dtype: dtype of the copies; None: their own.
        """
        specs, at, on_device = list[FileTensor](), 0, False
        for name, tensor in tensors:
            spec = spec_of(name, tensor.shape, dtype or tensor.dtype)
            if on_device and at + spec.nbytes > self.nbytes:
                torch.cuda.synchronize()  # what devices still write would miss the move to more memory
            as_tensor(self.reserve(at + spec.nbytes)[at : at + spec.nbytes], spec).copy_(tensor, non_blocking=True)
            on_device |= tensor.is_cuda
            specs.append(spec)
            at += spec.nbytes
        if on_device:
            torch.cuda.synchronize()
        return specs

    def blocks(self, specs: Sequence[FileTensor]) -> list[memoryview]:
        """The bytes of what `fill` copied, as one block."""
        return [bytes_of(self._memory[: sum(spec.nbytes for spec in specs)])]

    def tensors(self, specs: Sequence[FileTensor]) -> dict[str, Tensor]:
        """What `fill` copied, by name. They are this memory, and valid until it is given back."""
        found, at = dict[str, Tensor](), 0
        for spec in specs:
            found[spec.name] = as_tensor(self._memory[at : at + spec.nbytes], spec)
            at += spec.nbytes
        return found


def host_memory(nbytes: int, *, pinned: bool) -> Tensor:
    """Host memory of exactly so many bytes: torch's own pinned memory is rounded up to a power of two.

    Raises:
        CheckpointError: so many cannot be pinned.
    """
    memory = torch.empty(nbytes, dtype=torch.uint8)
    if pinned and nbytes:
        runtime = torch.cuda.cudart()
        if int(runtime.cudaHostRegister(memory.data_ptr(), nbytes, 0)):
            raise CheckpointError(
                f"found no {nbytes / 1e9:.1f} GB of host memory that can be pinned, expected room for one copy of this rank's "
                "state; raise the limit of locked memory (ulimit -l)"
            )
        weakref.finalize(memory, runtime.cudaHostUnregister, memory.data_ptr())
    return memory


def spec_of(name: str, shape: Iterable[int], dtype: torch.dtype) -> FileTensor:
    """How a file describes a tensor."""
    sizes = list(shape)
    return FileTensor(name, _KINDS[dtype], sizes, math.prod(sizes) * dtype.itemsize)


def as_tensor(memory: Tensor, spec: FileTensor) -> Tensor:
    """Bytes in memory as the tensor that they are."""
    return memory.view(_DTYPES[spec.dtype]).view(spec.shape)


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor on the CPU: its own memory if it is contiguous, else a copy."""
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def write_tensors(
    path: Path, specs: Sequence[FileTensor], blocks: Iterable[memoryview], *, synced: bool = True
) -> dict[str, Any]:
    """Write a safetensors file so that others see a whole one or none. Returns its fingerprint.

    Args:
        path: the file.
        specs: its tensors, in the order of their bytes.
        blocks: their bytes, in pieces of any size.
        synced: whether it is to survive a crash.

    Raises:
        OSError: the disk is full or broken.
    """
    growing = path.parent / f".{path.name}"
    sums, unsynced = Sums(), 0
    with growing.open("wb", buffering=0) as file:
        for block in chain([memoryview(header_of(specs))], blocks):
            for begin in range(0, len(block), CHUNK_BYTES):
                piece = block[begin : begin + CHUNK_BYTES]
                sums.add(piece)
                unsynced += len(piece)
                while piece:
                    piece = piece[file.write(piece) :]
                if synced and unsynced >= _SYNC_BYTES:
                    os.fdatasync(file.fileno())
                    unsynced = 0
        if synced:
            os.fsync(file.fileno())
    growing.replace(path)
    return sums.fingerprint()


class CheckedFile:
    """A safetensors file of a checkpoint. Each chunk is compared with its checksum as it is read.

    Args:
        path: the file.
        expected: its fingerprint; where that has one checksum of all, the whole file is read first.

    Attributes:
        tensors: place (`begin` and `end` in the file), dtype and shape of each tensor, by name.
        read_bytes: bytes that were read so far.

    Raises:
        CheckpointError: it is damaged, or cannot be read.
    """

    def __init__(self, path: Path, expected: Mapping[str, Any]) -> None:
        self.path, self.read_bytes = path, 0
        self._expected, self._nbytes = expected, int(expected["bytes"])
        self._chunk, self._number = bytearray(), -1
        self._checked = "xxh3" in expected
        if not self._checked:
            verify_file(path, expected)
            self.read_bytes = self._nbytes
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise self._unreadable(error) from error
        weakref.finalize(self, os.close, self._file)
        length = int.from_bytes(self._bytes(0, 8), "little")
        try:
            self.first, found = read_header(BytesIO(self._bytes(0, min(self._nbytes, 8 + length))))
            self.tensors = dict(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}; use another checkpoint") from error

    def shape(self, name: str) -> list[int]:
        """The shape of a tensor."""
        return list(self.tensors[name]["shape"])

    def dtype(self, name: str) -> torch.dtype:
        """The dtype of a tensor."""
        return _DTYPES[self.tensors[name]["dtype"]]

    def read_rows(self, name: str, rows: slice, into: Tensor) -> None:
        """Read rows of a tensor into memory of its dtype on the CPU."""
        about = self.tensors[name]
        begin, end = about["data_offsets"]
        row = (end - begin) // max(1, about["shape"][0])
        self.read_into(begin + rows.start * row, bytes_of(into))

    def read_tensor(self, name: str) -> Tensor:
        """A whole tensor, in memory of its own."""
        found = torch.empty(self.shape(name), dtype=self.dtype(name))
        self.read_into(self.tensors[name]["data_offsets"][0], bytes_of(found))
        return found

    def read_all(self, memory: HostCopy) -> dict[str, Tensor]:
        """All tensors, read at one go into memory in which they stay. They are valid until it is given back."""
        size = self._nbytes - self.first
        self.read_into(self.first, bytes_of(memory.reserve(size)[:size]))
        ordered = sorted(self.tensors.items(), key=lambda one: one[1]["data_offsets"][0])
        specs = [spec_of(name, about["shape"], _DTYPES[about["dtype"]]) for name, about in ordered]
        return memory.tensors(specs)

    def read_into(self, begin: int, memory: memoryview) -> None:
        """Read bytes from a place in the file on.

        Raises:
            CheckpointError: they are damaged, or cannot be read.
        """
        at, end = begin, begin + len(memory)
        while at < end:
            number, within = divmod(at, CHUNK_BYTES)
            size = min(CHUNK_BYTES, self._nbytes - number * CHUNK_BYTES)
            count = min(size - within, end - at)
            place = memory[at - begin : at - begin + count]
            if count == size:
                self._read(number, place)
            else:
                if number != self._number:
                    self._chunk = bytearray(max(0, size))
                    self._read(number, memoryview(self._chunk))
                    self._number = number
                place[:] = memoryview(self._chunk)[within : within + count]
            at += count

    def _bytes(self, begin: int, count: int) -> bytes:
        found = bytearray(count)
        self.read_into(begin, memoryview(found))
        return bytes(found)

    def _read(self, number: int, memory: memoryview) -> None:
        at = 0
        try:
            while at < len(memory):
                count = os.preadv(self._file, [memory[at:]], number * CHUNK_BYTES + at)
                if not count:
                    break
                at += count
        except OSError as error:
            raise self._unreadable(error) from error
        self.read_bytes += at
        if at < len(memory):
            raise CheckpointError(f"{self.path} is damaged: its bytes end too early; use another checkpoint")
        if self._checked:
            compare_chunk(self.path, number, xxhash.xxh3_64_hexdigest(memory), self._expected)

    def _unreadable(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self.path} cannot be read: {error.strerror}; use another checkpoint")
