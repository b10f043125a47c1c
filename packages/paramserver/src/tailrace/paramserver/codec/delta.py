"""Only the words of a chunk that changed since a version that both ends hold, exactly.

After an RL step at a small learning rate most bfloat16 weights are the same bits as before, and nearly all others moved
by a few units in the last place. A chunk is therefore read as 16-bit words, whatever the types of its tensors (a float32
is two words, of which the upper one seldom changes), and a changed word is sent as its step: new minus base, modulo
2**16, in one byte if it is within -128..127. So n changed words of N cost about n bytes for the steps and n bytes, or
N / 8 if that is less, for the places: 1.4 % of a chunk in which 1 % of the words moved, 21 % of one with 30 %.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from tailrace.paramserver.codec.delta_payload import (
    HEADER,
    MAGIC,
    PAGE_WORDS,
    WORD,
    DeltaPayload,
    page_words,
    pages,
    where_bytes,
    write_where,
)
from tailrace.paramserver.codec.errors import CodecUnavailable, PayloadMalformed

WORTH = 0.7  # of the raw size: a payload above this is not worth the passes over memory
_QUAD = 4  # words that are compared at once
_FEW = 16  # if at most one quad in this many changed, comparing only those is faster than comparing every word


class DeltaCodec:
    """The codec `delta`. See `tailrace.paramserver.codec.protocol.Codec`; needs numpy.

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
