"""Only the words of a chunk that changed since a version that both ends hold, exactly.

After an RL step at a small learning rate most bfloat16 weights are the same bits as before, and nearly all others moved
by a few units in the last place. A chunk is therefore read as 16-bit words, whatever the types of its tensors (a float32
is two words, of which the upper one seldom changes), and a changed word is sent as its step: new minus base, modulo
2**16, in one byte if it is within -128..127. So n changed words of N cost about n bytes for the steps and n bytes, or
N / 8 if that is less, for the places: 1.4 % of a chunk in which 1 % of the words moved, 21 % of one with 30 %.

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

import importlib.util
import struct
from collections.abc import Iterator
from typing import Any

from tailrace.paramserver.errors import CodecUnavailable, PayloadMalformed

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


WORTH = 0.7  # of the raw size: a payload above this is not worth the passes over memory
_QUAD = 4  # words that are compared at once
_FEW = 16  # if at most one quad in this many changed, comparing only those is faster than comparing every word


class DeltaCodec:
    """The codec `delta`. See `tailrace.paramserver.codec.registry.Codec`; needs numpy.

    Args:
        worth: the largest payload to make, as a fraction of the chunk.
    """

    def __init__(self, worth: float = WORTH) -> None:
        self._worth = worth

    @property
    def name(self) -> str:
        """`delta`."""
        return "delta"

    def unavailable(self) -> str | None:
        """Why it cannot be used here, or None if it can."""
        if importlib.util.find_spec("numpy"):
            return None
        return "numpy is not installed; pip install 'tailrace-paramserver[delta]'"

    def encode(self, base: memoryview, new: memoryview) -> bytes | None:
        """The payload, or None if it would be larger than `worth` allows, or the base has another size.

        Raises:
            CodecUnavailable: there is no numpy.
        """
        np, size = _numpy(), len(new)
        if len(base) != size:
            return None
        words, limit = size // WORD, int(self._worth * size)
        used = HEADER.size + 4 * pages(words) + size % WORD
        counts, where, steps, wide = list[int](), list[Any](), list[Any](), list[Any]()
        for page in range(pages(words)):
            start, n = WORD * page * PAGE_WORDS, page_words(page, words)
            places, step = _changes(np, base[start : start + WORD * n], new[start : start + WORD * n])
            counts.append(step.size)
            used += where_bytes(step.size, n) + step.size
            short = step.astype(np.int8)
            far = np.flatnonzero(short != step)
            used += WORD * far.size
            if used > limit:
                return None
            where += write_where(np, places, n)
            if far.size:
                wide.append(step[far])
                short[far] = 0
            steps.append(short)
        if used > limit:
            return None
        header = HEADER.pack(MAGIC, size, sum(part.size for part in wide))
        return b"".join([header, np.array(counts, "<u4"), *where, *steps, *wide, new[size - size % WORD :]])

    def decode(self, payload: memoryview, base: memoryview, into: memoryview) -> None:
        """Copy the base into `into` and take the steps.

        Raises:
            PayloadMalformed: found before anything is written.
            CodecUnavailable: there is no numpy.
        """
        np = _numpy()
        if len(base) != len(into):
            raise PayloadMalformed(f"found a base of {len(base)} bytes, expected {len(into)}, the size of the chunk")
        sound = DeltaPayload(np, payload, len(into))
        words, changes = len(into) // WORD, sound.changes()
        old, out = np.frombuffer(base, "<u2", words), np.frombuffer(into, "<u2", words)
        for page, count in enumerate(sound.counts):
            part = slice(page * PAGE_WORDS, page * PAGE_WORDS + page_words(page, words))
            np.copyto(out[part], old[part])
            if count:
                places, step = next(changes)
                out[part][... if places is None else places] += step
        into[len(into) - len(sound.tail) :] = sound.tail


def _changes(np: Any, base: memoryview, new: memoryview) -> tuple[Any, Any]:
    """The places of the words of a page that differ, rising, and their steps as int16."""
    words = len(new) // WORD
    if words % _QUAD == 0:
        old, now = np.frombuffer(base, "<u8"), np.frombuffer(new, "<u8")
        differs = old != now
        if int(np.count_nonzero(differs)) * _FEW <= differs.size:
            quads = np.flatnonzero(differs)
            step = now[quads].view("<i2") - old[quads].view("<i2")
            places = np.flatnonzero(step)
            return (quads[places // _QUAD] * _QUAD) + places % _QUAD, step[places]
    step = np.frombuffer(new, "<i2") - np.frombuffer(base, "<i2")
    places = np.flatnonzero(step != 0)  # to select by these is faster than by the mask
    return places, step[places]


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise CodecUnavailable("the codec 'delta' needs numpy; pip install 'tailrace-paramserver[delta]'") from error
    return numpy
