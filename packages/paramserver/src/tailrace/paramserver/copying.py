"""Copies between buffers without the interpreter lock, with an optional checksum.

A verified copy goes block by block: copy 512 KiB, then hash what was just written while it is still in the core's own
cache, so hashing costs no second trip to memory. What is hashed are the bytes that the caller gets, not those they were
copied from. A second thread that hashes beside the copy was tried and is slower: one core's copy already takes the memory's
bandwidth, the second reads everything from memory again, and a host's cores have other work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from types import TracebackType

import xxhash

#: Copied, then hashed, at a time: with its source it fits in the second-level cache of current server cores.
BLOCK_BYTES = 512 * 2**10


class Address:
    """The address of a C-contiguous buffer, valid while the context is open.

    Raises:
        BufferError: the buffer has gaps, or is read-only and `writable` was asked for.
    """

    def __init__(self, buffer: object, *, writable: bool = False) -> None:
        self._held = _PyBuffer()
        _get_buffer(buffer, ctypes.byref(self._held), _WRITABLE if writable else 0)
        self.start = int(self._held.buf or 0)
        self.nbytes = int(self._held.len)

    def __enter__(self) -> Address:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _release_buffer(ctypes.byref(self._held))


def copy(into: memoryview, source: memoryview) -> None:
    """Copy a buffer. Other threads run meanwhile, as they do not during ``into[:] = source``.

    Raises:
        ValueError: the sizes differ.
        BufferError: a buffer has gaps, or `into` is read-only.
    """
    with Address(into, writable=True) as target, Address(source) as origin:
        _check_sizes(target, origin)
        move(target.start, origin.start, origin.nbytes)


def hashed_copy(into: memoryview, source: memoryview) -> int:
    """Copy a buffer. Returns the xxh3 64-bit checksum of the written bytes.

    Raises:
        ValueError, BufferError: see `copy`.
    """
    with Address(into, writable=True) as target, Address(source) as origin:
        _check_sizes(target, origin)
        hasher = Hasher()
        hasher.copy(target.start, origin.start, origin.nbytes)
        return hasher.value()


class Hasher:
    """The checksum of bytes that come in pieces, some of which are copied on the way. Addresses are trusted."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_64()

    def copy(self, into: int, source: int, nbytes: int) -> None:
        """Copy from address to address, and add the written bytes to the checksum."""
        if nbytes == 0:
            return
        written = at(into, nbytes)
        for start in range(0, nbytes, BLOCK_BYTES):
            size = min(BLOCK_BYTES, nbytes - start)
            move(into + start, source + start, size)
            self._hash.update(written[start : start + size])

    def skip(self, view: memoryview) -> None:
        """Count bytes that are not copied."""
        if view.nbytes:
            self._hash.update(view)

    def value(self) -> int:
        """The checksum so far: that of `tailrace.paramserver.manifest.checksum`."""
        return int(self._hash.intdigest())


def move(into: int, source: int, nbytes: int) -> None:
    """Copy from address to address without the interpreter's lock."""
    ctypes.memmove(into, source, nbytes)


def at(address: int, nbytes: int) -> memoryview:
    """Memory at an address as a writable buffer. Nothing keeps it alive."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def joined(moves: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Moves of `(into, source, nbytes)` with neighbours on both sides made one.

    One long copy is faster than many: beyond a few hundred MiB the C library writes past the caches.
    """
    result = list[tuple[int, int, int]]()
    for into, source, nbytes in moves:
        if result:
            before_into, before_source, before = result[-1]
            if (before_into + before, before_source + before) == (into, source):
                result[-1] = (before_into, before_source, before + nbytes)
                continue
        result.append((into, source, nbytes))
    return result


def _check_sizes(target: Address, origin: Address) -> None:
    if target.nbytes != origin.nbytes:
        raise ValueError(f"found a buffer of {target.nbytes} bytes to copy into, expected {origin.nbytes}")


class _PyBuffer(ctypes.Structure):
    """`Py_buffer` of the stable ABI."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_WRITABLE = 1  # PyBUF_WRITABLE; without PyBUF_STRIDES only contiguous buffers are given
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.c_void_p,)
_release_buffer.restype = None
