"""The content of a version: its tensors, their places, and how the bytes are cut into chunks.

A manifest that comes over a wire is untrusted until `Manifest.from_wire` has accepted it; nothing is allocated or
written before that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import xxhash

from tailrace.paramserver.errors import ManifestInvalid

#: Element sizes in bytes. The names are torch's, without the prefix.
DTYPES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
ALIGNMENT = 64  # of every tensor's first byte: a cache line, and enough for any dtype
_MAX_TENSORS = 1_000_000
_MAX_CHUNKS = 1_000_000
_MAX_NAME = 1024
_MAX_DIMENSIONS = 16
_MAX_INTEGER = 2**62


class Part(NamedTuple):
    """Which part of a tensor a spec is, where the ranks of a trainer publish their own shards.

    Args:
        tensor: Hugging Face parameter name.
        whole: dimensions of the tensor.
        start: position of the part's first element in it.
    """

    tensor: str
    whole: tuple[int, ...]
    start: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a version, or a box of one.

    Args:
        name: Hugging Face parameter name; of a part something else that is unique.
        dtype: a key of `DTYPES`.
        shape: dimensions.
        offset: offset of its first byte in the version, a multiple of 64.
        nbytes: its size, row-major and without gaps.
        part: for a part of a tensor, its number.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    part: Part | None = None

    @property
    def box(self) -> tuple[tuple[int, int], ...]:
        """Which elements of its tensor it is."""
        start = (0,) * len(self.shape) if self.part is None else self.part.start
        return tuple((first, first + size) for first, size in zip(start, self.shape, strict=True))

    def to_wire(self) -> list[Any]:
        """The spec as a JSON array."""
        found = [self.name, self.dtype, list(self.shape), self.offset, self.nbytes]
        return found if self.part is None else [*found, self.part.tensor, list(self.part.whole), list(self.part.start)]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The layout of a version.

    Args:
        version: the version's number.
        stamp: grows with every publication, also when version numbers start over after a trainer's recovery. A
            publication is identified by its version and stamp together; the newest is the one with the largest stamp.
        chunk_bytes: size of every chunk but the last.
        total_bytes: size of the version.
        tensors: the tensors in order of publication, which is also the order of their offsets.
        tied: other names of tensors that share memory with one in `tensors`: such a tensor is stored once.
    """

    version: int
    stamp: int
    chunk_bytes: int
    total_bytes: int
    tensors: tuple[TensorSpec, ...]
    tied: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, int]:
        """The key that identifies the publication."""
        return (self.version, self.stamp)

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        return -(-self.total_bytes // self.chunk_bytes)

    def chunk(self, index: int) -> tuple[int, int]:
        """Offset and size in bytes of a chunk."""
        offset = index * self.chunk_bytes
        return offset, min(self.chunk_bytes, self.total_bytes - offset)

    def same_layout(self, other: Manifest) -> bool:
        """Whether the same tensors lie at the same places and are cut the same way, so that chunks can be compared."""
        mine = (self.chunk_bytes, self.total_bytes, self.tensors)
        return mine == (other.chunk_bytes, other.total_bytes, other.tensors)

    def to_wire(self) -> dict[str, Any]:
        """The manifest as a JSON object."""
        return {
            "version": self.version,
            "stamp": self.stamp,
            "chunk_bytes": self.chunk_bytes,
            "total_bytes": self.total_bytes,
            "tensors": [spec.to_wire() for spec in self.tensors],
            "tied": dict(self.tied),
        }

    @classmethod
    def from_wire(cls, data: object, *, max_bytes: int | None = None) -> Manifest:
        """The manifest in a JSON object.

        Args:
            data: the result of `to_wire`, or any other value.
            max_bytes: the largest version to accept.

        Raises:
            ManifestInvalid: a field is missing or of the wrong type, names repeat, sizes do not fit shapes, tensors
                overlap, are misaligned or stick out of the version, or a limit is passed.
        """
        if not isinstance(data, dict) or data.keys() != _FIELDS:
            found = sorted(map(str, data)) if isinstance(data, dict) else type(data).__name__
            raise ManifestInvalid(f"found a manifest with {found}, expected an object with {sorted(_FIELDS)}")
        version, stamp = _integer(data["version"], "version"), _integer(data["stamp"], "stamp")
        total = _integer(data["total_bytes"], "total_bytes")
        chunk_bytes = _integer(data["chunk_bytes"], "chunk_bytes", low=1, high=2**32 - 1)
        if max_bytes is not None and total > max_bytes:
            raise ManifestInvalid(f"found a version of {total} bytes, expected at most {max_bytes}; raise max_bytes")
        if total > chunk_bytes * _MAX_CHUNKS:
            raise ManifestInvalid(f"{total} bytes in chunks of {chunk_bytes} are more than {_MAX_CHUNKS} chunks")
        tensors, tied = data["tensors"], data["tied"]
        if not isinstance(tensors, list) or not 0 < len(tensors) <= _MAX_TENSORS:
            raise ManifestInvalid(f"tensors: expected a list of 1 to {_MAX_TENSORS} tensors")
        specs, names, end = [], set[str](), 0
        for item in tensors:
            spec = _tensor(item)
            if spec.name in names:
                raise ManifestInvalid(f"found the tensor {spec.name!r} twice, expected unique names")
            if spec.offset < end:
                raise ManifestInvalid(f"{spec.name!r} at offset {spec.offset} overlaps the tensor that ends at {end}")
            end = spec.offset + spec.nbytes
            names.add(spec.name)
            specs.append(spec)
        if end != total:
            raise ManifestInvalid(f"the last tensor ends at byte {end}, expected total_bytes, {total}")
        if not isinstance(tied, dict) or len(tied) > _MAX_TENSORS:
            raise ManifestInvalid("tied: expected an object of names")
        for alias, name in tied.items():
            if not isinstance(name, str) or name not in names or _name(alias) in names:
                raise ManifestInvalid(f"tied: {alias!r} must be a new name for a tensor of the manifest, not {name!r}")
        return cls(version, stamp, chunk_bytes, total, tuple(specs), tied)


_FIELDS = {"version", "stamp", "chunk_bytes", "total_bytes", "tensors", "tied"}


def checksum(data: Any) -> int:
    """The xxh3 64-bit checksum of a buffer. It finds damage; it is no defence against a forger."""
    return int(xxhash.xxh3_64_intdigest(data))


def aligned(offset: int) -> int:
    """The first offset at or after this one where a tensor may start."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def byte_size(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor without gaps."""
    return DTYPES[dtype] * math.prod(shape)


def _integer(value: object, where: str, low: int = 0, high: int = _MAX_INTEGER) -> int:
    if type(value) is not int or not low <= value <= high:  # a bool is no integer here
        raise ManifestInvalid(f"{where}: found {str(value)[:40]!r}, expected an integer from {low} to {high}")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_NAME or not value.isprintable():
        raise ManifestInvalid(f"found the name {str(value)[:40]!r}, expected 1 to {_MAX_NAME} printable characters")
    return value


def _tensor(item: object) -> TensorSpec:
    if not isinstance(item, list) or len(item) not in (5, 8):
        raise ManifestInvalid(
            "a tensor is a list of name, dtype, shape, offset, nbytes and, for a part, of what it is a part"
        )
    name, dtype, dimensions = _name(item[0]), item[1], item[2]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ManifestInvalid(f"{name!r}: found the dtype {str(dtype)[:40]!r}, expected one of {', '.join(DTYPES)}")
    if not isinstance(dimensions, list) or len(dimensions) > _MAX_DIMENSIONS:
        raise ManifestInvalid(f"{name!r}: expected a shape of at most {_MAX_DIMENSIONS} dimensions")
    shape = tuple(_integer(size, f"{name!r} shape") for size in dimensions)
    offset, nbytes = _integer(item[3], f"{name!r} offset"), _integer(item[4], f"{name!r} nbytes")
    if nbytes != byte_size(dtype, shape):
        raise ManifestInvalid(f"{name!r}: found {nbytes} bytes, expected {byte_size(dtype, shape)} for {dtype} {shape}")
    if offset % ALIGNMENT:
        raise ManifestInvalid(f"{name!r}: found the offset {offset}, expected a multiple of {ALIGNMENT}")
    return TensorSpec(name, dtype, shape, offset, nbytes, _part(name, shape, *item[5:]) if item[5:] else None)


def _part(name: str, shape: tuple[int, ...], tensor: object, whole: object, start: object) -> Part:
    sizes = [_integer(size, f"{name!r} whole") for size in whole] if isinstance(whole, list) else []
    first = [_integer(at, f"{name!r} start") for at in start] if isinstance(start, list) else []
    fits = len(sizes) == len(first) == len(shape)
    if not fits or any(at + size > end for at, size, end in zip(first, shape, sizes, strict=True)):
        raise ManifestInvalid(f"{name!r}: found the part of {shape} at {first} of {sizes}, expected one inside of it")
    return Part(_name(tensor), tuple(sizes), tuple(first))
