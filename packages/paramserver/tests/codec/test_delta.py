import random
import struct
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.paramserver import ParamServerError, ProtocolError
from tailrace.paramserver.codec import delta
from tailrace.paramserver.codec.delta import DeltaCodec
from tailrace.paramserver.errors import CodecUnavailable, PayloadMalformed

ALWAYS = DeltaCodec(worth=10.0)  # encodes whatever it costs
GUARD = b"\xa5" * 64


def applied(payload, base, size):
    """What `decode` writes between two guards, which it must leave alone."""
    memory = bytearray(GUARD + bytes([0x5A]) * size + GUARD)
    ALWAYS.decode(memoryview(payload), memoryview(base), memoryview(memory)[len(GUARD) : len(GUARD) + size])
    assert memory[: len(GUARD)] == GUARD
    assert memory[len(GUARD) + size :] == GUARD
    return bytes(memory[len(GUARD) : len(GUARD) + size])


def reference_decode(payload, base):
    """The format as its docstring tells it, one word after the other, without numpy."""
    magic, size, wide_count = struct.unpack_from("<4sII", payload)
    assert magic == b"TRd1"
    words = size // 2
    per_page = delta.PAGE_WORDS
    pages = (words + per_page - 1) // per_page
    counts = struct.unpack_from(f"<{pages}I", payload, 12)
    at, places = 12 + 4 * pages, []
    for page, count in enumerate(counts):
        n = min(per_page, words - page * per_page)
        first = page * per_page
        blocks, bitmap = (n + 255) // 256, (n + 7) // 8
        if count == n:
            places += range(first, first + n)
        elif count and 2 * blocks + count <= bitmap:
            in_block = struct.unpack_from(f"<{blocks}H", payload, at)
            at += 2 * blocks
            for block, k in enumerate(in_block):
                places += [first + 256 * block + place for place in payload[at : at + k]]
                at += k
        elif count:
            places += [first + i for i in range(n) if payload[at + i // 8] >> (i % 8) & 1]
            at += bitmap
    assert len(places) == sum(counts)
    steps = struct.unpack_from(f"<{len(places)}b", payload, at)
    wide = list(struct.unpack_from(f"<{wide_count}H", payload, at + len(places)))
    new = list(struct.unpack_from(f"<{words}H", base))
    for place, step in zip(places, steps, strict=True):
        new[place] = (new[place] + (step or wide.pop(0))) % 2**16
    assert not wide
    end = at + len(places) + 2 * wide_count
    assert len(payload) == end + size % 2
    return struct.pack(f"<{words}H", *new) + payload[end:]


def differing(seed, size, density, far):
    """A base and a new chunk: so many of the words differ, so many of those by more than a byte."""
    generator = random.Random(seed)
    base = generator.randbytes(size)
    new = bytearray(base)
    for word in range(size // 2):
        if generator.random() < density:
            step = generator.randrange(2**16) if generator.random() < far else generator.choice([1, -1, 2, 127, -128])
            value = (int.from_bytes(base[2 * word : 2 * word + 2], "little") + step) % 2**16
            new[2 * word : 2 * word + 2] = value.to_bytes(2, "little")
    if size % 2 and density:
        new[-1] ^= generator.randrange(256)
    return base, bytes(new)


densities = st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.12, 0.3, 0.9, 1.0])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(0, 5000), density=densities, far=st.sampled_from([0.0, 0.1, 1.0]))
@pytest.mark.parametrize("words", [2**17, 512])  # of a page: small ones bring many, and their edges, into a small chunk
def test_exact_for_any_base_and_chunk(words, seed, size, density, far):
    base, new = differing(seed, size, density, far)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta, "PAGE_WORDS", words)
        patch.setattr(delta, "PAGE_WORDS", words)
        payload = ALWAYS.encode(memoryview(base), memoryview(new))
        if payload is None:  # ten times the size of a chunk of a few bytes is less than a header
            assert size < 8
            return
        assert reference_decode(payload, base) == new
        assert applied(payload, base, size) == new


@settings(max_examples=100, deadline=None)
@given(pair=st.integers(0, 400).flatmap(lambda n: st.tuples(*[st.binary(min_size=n, max_size=n)] * 2)))
def test_exact_for_arbitrary_bytes(pair):
    base, new = pair
    payload = ALWAYS.encode(memoryview(base), memoryview(new))
    if len(new) >= 8:
        assert payload is not None
    if payload is not None:
        assert applied(payload, base, len(new)) == reference_decode(payload, base) == new


@pytest.mark.parametrize("density", [0.0, 0.0005, 0.01, 0.05, 0.1, 0.125, 0.3, 0.8, 1.0])
def test_exact_over_many_pages(density):
    """Pages of full size, with the last one partial, against numpy."""
    generator = np.random.default_rng(7)
    words = 3 * delta.PAGE_WORDS + 77
    base = generator.integers(0, 2**16, words, dtype=np.uint16)
    moves = np.where(
        generator.random(words) < 0.01, generator.integers(0, 2**16, words), generator.choice([1, -1], words)
    )
    new = base + np.where(generator.random(words) < density, moves, 0).astype(np.uint16)
    payload = ALWAYS.encode(memoryview(base.tobytes()), memoryview(new.tobytes()))
    assert applied(payload, base.tobytes(), 2 * words) == new.tobytes()
    changed = int(np.count_nonzero(base != new))
    wide = int(np.count_nonzero(np.abs((new - base).view(np.int16).astype(int) + 0.5) > 128))
    cheapest = min(changed + 2 * -(-words // 256), -(-words // 8))
    assert len(payload) <= 12 + 4 * 4 + changed + 2 * wide + cheapest + 8


def test_every_bit_pattern_of_a_bfloat16_survives():
    """NaNs with payloads, both zeros and infinities: a float comparison would lose -0.0 and never match a NaN."""
    patterns = np.arange(2**16, dtype=np.uint16)
    nothing_moved = ALWAYS.encode(memoryview(patterns.tobytes()), memoryview(patterns.tobytes()))
    assert len(nothing_moved) == 12 + 4
    for base in (
        np.zeros_like(patterns),
        patterns[::-1],
        np.full_like(patterns, 0x7FC0),
        np.full_like(patterns, 0x8000),
    ):
        payload = ALWAYS.encode(memoryview(base.tobytes()), memoryview(patterns.tobytes()))
        assert applied(payload, base.tobytes(), patterns.nbytes) == patterns.tobytes()


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(0, 3000), density=densities, far=st.sampled_from([0.0, 1.0]))
def test_none_exactly_when_it_is_not_worth_it(seed, size, density, far):
    base, new = differing(seed, size, density, far)
    payload = DeltaCodec(worth=0.7).encode(memoryview(base), memoryview(new))
    anyhow = DeltaCodec(worth=1000.0).encode(memoryview(base), memoryview(new))
    if payload is None:
        assert anyhow is None or len(anyhow) > int(0.7 * size)
    else:
        assert payload == anyhow
        assert len(payload) <= 0.7 * size


def test_a_base_of_another_size_is_no_base():
    assert DeltaCodec().encode(memoryview(bytes(1000)), memoryview(bytes(1002))) is None
    payload = DeltaCodec().encode(memoryview(bytes(1000)), memoryview(bytes(1000)))
    into = bytearray(b"x" * 1000)
    with pytest.raises(PayloadMalformed, match="found a base of 998 bytes, expected 1000"):
        DeltaCodec().decode(memoryview(payload), memoryview(bytes(998)), memoryview(into))
    with pytest.raises(PayloadMalformed, match="for a chunk of 1000 bytes, expected 998"):
        DeltaCodec().decode(memoryview(payload), memoryview(bytes(998)), memoryview(into)[:998])
    assert into == b"x" * 1000


def test_a_small_step_is_a_small_payload():
    """One step of a few units in the last place on 1 % of the weights: 1.5 % of the bytes."""
    generator = np.random.default_rng(3)
    base = (generator.standard_normal(2**20, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    new = base + (generator.random(base.size) < 0.01).astype(np.uint16)
    payload = DeltaCodec().encode(memoryview(base.tobytes()), memoryview(new.tobytes()))
    assert len(payload) < 0.015 * base.nbytes


def corrupted(payload, seed):
    """Damage of one of the kinds that a wire, or a forger, makes."""
    generator, data = random.Random(seed), bytearray(payload)
    kind = generator.randrange(6)
    if kind == 0:
        for _ in range(generator.randrange(1, 5)):
            data[generator.randrange(len(data))] = generator.randrange(256)
    elif kind == 1:
        del data[generator.randrange(len(data)) :]
    elif kind == 2:
        data += generator.randbytes(generator.randrange(1, 40))
    elif kind == 3:
        at = generator.randrange(min(len(data), 64))
        data[at : at + 4] = struct.pack("<I", generator.choice([0, 1, 2, 0xFFFF, 2**31, 2**32 - 1]))
    elif kind == 4:
        at = generator.randrange(len(data))
        data[at : at + 8] = data[at : at + 8][::-1]
    else:
        data[12:] = generator.randbytes(len(data) - 12)
    return bytes(data)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(8, 3000), density=densities, far=st.sampled_from([0.0, 0.2]))
@pytest.mark.parametrize("words", [2**17, 512])
def test_a_damaged_payload_is_refused_or_decodes_to_something_without_harm(words, seed, size, density, far):
    base, new = differing(seed, size, density, far)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta, "PAGE_WORDS", words)
        patch.setattr(delta, "PAGE_WORDS", words)
        damaged = corrupted(ALWAYS.encode(memoryview(base), memoryview(new)), seed)
        memory = bytearray(GUARD + b"\x5a" * size + GUARD)
        into = memoryview(memory)[len(GUARD) : len(GUARD) + size]
        try:
            ALWAYS.decode(memoryview(damaged), memoryview(base), into)
        except PayloadMalformed:
            assert bytes(into) == b"\x5a" * size, "written before it was checked"
        else:
            assert bytes(into) == reference_decode(damaged, base), "what is accepted is what the format says"
        assert memory[: len(GUARD)] == GUARD
        assert memory[len(GUARD) + size :] == GUARD


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), size=st.integers(0, 200))
def test_noise_is_refused(data, size):
    into = bytearray(size)
    with pytest.raises(ProtocolError):
        ALWAYS.decode(memoryview(data), memoryview(bytes(size)), memoryview(into))
    assert into == bytes(size)


def payload_of(size, *, count=0, where=b"", steps=b"", wide=b"", wide_count=None, tail=b"", magic=b"TRd1"):
    announced = len(wide) // 2 if wide_count is None else wide_count
    return struct.pack("<4sIII", magic, size, announced, count) + where + steps + wide + tail


BLOCKS = 5120  # bytes of a chunk of ten blocks: up to 300 changes are told by blocks
GOOD = payload_of(BLOCKS, count=2, where=struct.pack("<10H", 1, *[0] * 8, 1) + b"\x07\xff", steps=b"\x01\xff")
BAD = {
    "magic": (payload_of(8, magic=b"TRd2"), "starts with b'TRd2'"),
    "size": (payload_of(10), "for a chunk of 10 bytes, expected 8"),
    "shorter than a header": (b"TRd1", "expected at least 16"),
    "more changes than words": (payload_of(8, count=5, where=b"\x0f", steps=b"\x01" * 5), "found 5 changes in page 0"),
    "too long": (payload_of(8) + b"\0", "found a payload of 17 bytes, expected 16"),
    "too short": (payload_of(8, count=4, steps=b"\x01" * 3), "expected 20 by its counts"),
    "huge wide": (payload_of(8, wide_count=2**32 - 1), "expected 8589934606"),
    "wide without its sign": (payload_of(8, count=4, steps=b"\x01" * 4, wide=b"\0\x10"), "1 wide steps, expected 0"),
    "sign without its wide": (payload_of(8, count=4, steps=b"\x01\0\x01\x01"), "0 wide steps, expected 1"),
    "wide that is narrow": (payload_of(8, count=4, steps=b"\0" * 4, wide=b"\1\0" * 4), "fits in a byte"),
    "bitmap of too many": (payload_of(8, count=1, where=b"\x03", steps=b"\x01"), "does not mark 1 of its 4 words"),
    "bitmap past the end": (payload_of(8, count=1, where=b"\x80", steps=b"\x01"), "does not mark 1 of its 4 words"),
}
BAD_BLOCKS = {
    "total": (struct.pack("<10H", 1, *[0] * 9) + b"\x07\xff", "with 1 changes in page 0, expected 2"),
    "total of too many": (struct.pack("<10H", 0xFFFF, *[0] * 8, 3) + b"\x07\xff", "expected 2"),
    "twice": (struct.pack("<10H", 2, *[0] * 9) + b"\x07\x07", "do not rise"),
    "falling": (struct.pack("<10H", 2, *[0] * 9) + b"\x08\x07", "do not rise"),
}


@pytest.mark.parametrize("case", BAD)
def test_refuses(case):
    payload, message = BAD[case]
    with pytest.raises(PayloadMalformed, match=message):
        ALWAYS.decode(memoryview(payload), memoryview(bytes(8)), memoryview(bytearray(8)))


@pytest.mark.parametrize("case", BAD_BLOCKS)
def test_refuses_blocks(case):
    where, message = BAD_BLOCKS[case]
    assert reference_decode(GOOD, bytes(BLOCKS)) == applied(GOOD, bytes(BLOCKS), BLOCKS)
    payload = payload_of(BLOCKS, count=2, where=where, steps=b"\x01\xff")
    with pytest.raises(PayloadMalformed, match=message):
        ALWAYS.decode(memoryview(payload), memoryview(bytes(BLOCKS)), memoryview(bytearray(BLOCKS)))


def test_refuses_a_place_after_the_last_word():
    size = 2 * (256 * 9 + 10)  # the tenth block has ten words
    where = struct.pack("<10H", *[0] * 9, 1)
    for place, accepted in ((9, True), (10, False)):
        payload = payload_of(size, count=1, where=where + bytes([place]), steps=b"\x01")
        if accepted:
            assert applied(payload, bytes(size), size) == bytes(size - 2) + b"\x01\0"
        else:
            with pytest.raises(PayloadMalformed, match="pass its 2314 words"):
                applied(payload, bytes(size), size)


def test_a_read_only_base_at_an_odd_address_will_do():
    base, new = differing(5, 4000, 0.1, 0.1)
    shifted_base, shifted_new = memoryview(b"x" + base)[1:], memoryview(b"xyz" + new)[3:]
    payload = ALWAYS.encode(shifted_base, shifted_new)
    memory = bytearray(4001)
    ALWAYS.decode(memoryview(b"x" + payload)[1:], shifted_base, memoryview(memory)[1:])
    assert memory[1:] == new


def test_without_numpy_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setattr(delta.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'tailrace-paramserver[delta]'" in DeltaCodec().unavailable()
    with pytest.raises(CodecUnavailable, match=r"pip install 'tailrace-paramserver\[delta\]'") as caught:
        DeltaCodec().encode(memoryview(b""), memoryview(b""))
    assert isinstance(caught.value, ParamServerError)
    with pytest.raises(CodecUnavailable):
        DeltaCodec().decode(memoryview(b""), memoryview(b""), memoryview(b""))
