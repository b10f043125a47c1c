"""The payload of the codec `delta`: its layout, and the checks of one that a peer sent.

A payload, little-endian:

    header      magic, bytes of the chunk, steps that are wide
    changed     uint32 for each page of 2**17 words: how many of its words changed
    where       for each page, as small as its count allows (`where_bytes`): nothing if none or all changed; the
                number of changes in each block of 256 words and a byte for each change's place in its block; or a
                bit for each word
    steps       int8 for each changed word; 0 says that the step is wide
    wide        uint16 for each wide step
    tail        the last byte of a chunk of odd size

Every size follows from the counts, so a payload has exactly one possible length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from tailrace.paramserver.codec.errors import PayloadMalformed

HEADER = struct.Struct("<4sII")
MAGIC = b"TRd1"
WORD = 2
PAGE_WORDS = 2**17  # a page of the base and of the chunk fit in a second-level cache
BLOCK_WORDS = 256  # so that a place in a block is one byte


def pages(words: int) -> int:
    """Number of pages of a chunk."""
    return -(-words // PAGE_WORDS)


def page_words(page: int, words: int) -> int:
    """Number of words in a page of a chunk."""
    return min(PAGE_WORDS, words - page * PAGE_WORDS)


def in_blocks(count: int, words: int) -> bool:
    """Whether the places of `count` changes in a page are told by blocks, rather than by a bit for each word."""
    return _blocks_bytes(count, words) <= _bitmap_bytes(words)


def where_bytes(count: int, words: int) -> int:
    """Bytes that say which `count` of a page's `words` words changed."""
    if count in (0, words):
        return 0
    return min(_blocks_bytes(count, words), _bitmap_bytes(words))


def write_where(np: Any, places: Any, words: int) -> list[Any]:
    """What says that of a page's words those at `places`, which rise, changed: arrays to append to the payload."""
    if where_bytes(places.size, words) == 0:
        return []
    if in_blocks(places.size, words):
        edges = np.arange(0, words + BLOCK_WORDS, BLOCK_WORDS)
        # The low byte of a place is its place in its block.
        return [np.diff(np.searchsorted(places, edges)).astype("<u2"), places.astype(np.uint8)]
    marked = np.zeros(words, bool)
    marked[places] = True
    return [np.packbits(marked, bitorder="little")]


class DeltaPayload:
    """A payload for a chunk of `size` bytes; all of it has been checked.

    Attributes:
        counts: how many words of each page changed.
        tail: the last byte of a chunk of odd size, else empty.

    Raises:
        PayloadMalformed: it is no payload, or not for a chunk of this size.
    """

    def __init__(self, np: Any, payload: memoryview, size: int) -> None:
        self._np, self._payload, self._words = np, payload, size // WORD
        fixed = HEADER.size + 4 * pages(self._words)
        if len(payload) < fixed:
            raise PayloadMalformed(f"found a payload of {len(payload)} bytes, expected at least {fixed}")
        magic, found, wide = HEADER.unpack_from(payload)
        if magic != MAGIC:
            raise PayloadMalformed(f"found a payload that starts with {magic!r}, expected {MAGIC!r}")
        if found != size:
            raise PayloadMalformed(f"found a payload for a chunk of {found} bytes, expected {size}")
        self.counts: list[int] = np.frombuffer(payload, "<u4", pages(self._words), HEADER.size).tolist()
        self._where = [fixed]
        for page, count in enumerate(self.counts):
            words = page_words(page, self._words)
            if count > words:
                raise PayloadMalformed(f"found {count} changes in page {page}, expected at most its {words} words")
            self._where.append(self._where[-1] + where_bytes(count, words))
        total, at = sum(self.counts), self._where[-1]
        end = at + total + WORD * wide
        if len(payload) != end + size % WORD:
            raise PayloadMalformed(
                f"found a payload of {len(payload)} bytes, expected {end + size % WORD} by its counts"
            )
        self.tail = payload[end:]
        self._short = np.frombuffer(payload, np.int8, total, at)
        self._wide = np.frombuffer(payload, "<i2", wide, at + total)
        self._check_steps()
        self._places = {page: self._check_places(page) for page, count in enumerate(self.counts) if count}

    def changes(self) -> Iterator[tuple[Any, Any]]:
        """For each page that changed the places of its changed words, or None for all, and their steps modulo 2**16."""
        taken = far_taken = 0
        for page, count in enumerate(self.counts):
            if not count:
                continue
            short = self._short[taken : taken + count]
            step = short.astype("<i2")
            if far_taken < self._wide.size:
                far = self._np.flatnonzero(short == 0)
                step[far] = self._wide[far_taken : far_taken + far.size]
                far_taken += far.size
            taken += count
            places = self._places[page]
            if places is None and count < page_words(page, self._words):
                places = self._np.flatnonzero(self._bits(page).view(bool))
            yield places, step.view("<u2")

    def _check_steps(self) -> None:
        announced = self._short.size - int(self._np.count_nonzero(self._short))
        if announced != self._wide.size:
            raise PayloadMalformed(f"found {self._wide.size} wide steps, expected {announced}")
        if (self._wide.astype(self._np.int8) == self._wide).any():
            raise PayloadMalformed("found a wide step that fits in a byte, expected only those that do not")

    def _check_places(self, page: int) -> Any:
        """The places that are told by blocks; None for others, which are many and found again when they are needed."""
        np, count, words = self._np, self.counts[page], page_words(page, self._words)
        if count == words:
            return None
        if not in_blocks(count, words):
            bits = self._bits(page)
            if int(np.count_nonzero(bits)) != count or bits[words:].any():
                raise PayloadMalformed(f"found a bitmap of page {page} that does not mark {count} of its {words} words")
            return None
        at, blocks = self._where[page], _blocks(words)
        in_block = np.frombuffer(self._payload, "<u2", blocks, at)
        total = int(in_block.sum(dtype=np.int64))
        if total != count:
            raise PayloadMalformed(f"found blocks with {total} changes in page {page}, expected {count}")
        places = np.repeat(np.arange(0, words, BLOCK_WORDS), in_block)
        places += np.frombuffer(self._payload, np.uint8, count, at + WORD * blocks)
        if int(places[-1]) >= words or not (places[1:] > places[:-1]).all():
            raise PayloadMalformed(f"found places in page {page} that do not rise or pass its {words} words")
        return places

    def _bits(self, page: int) -> Any:
        """A byte for each bit of a page's bitmap; bits after its last word too."""
        at, nbytes = self._where[page], _bitmap_bytes(page_words(page, self._words))
        return self._np.unpackbits(self._np.frombuffer(self._payload, self._np.uint8, nbytes, at), bitorder="little")


def _blocks(words: int) -> int:
    return -(-words // BLOCK_WORDS)


def _blocks_bytes(count: int, words: int) -> int:
    return WORD * _blocks(words) + count


def _bitmap_bytes(words: int) -> int:
    return -(-words // 8)
