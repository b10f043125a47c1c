import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.paramserver import CHUNK_BYTES, chain_broadcast_time_s
from tailrace.paramserver.chunk_size import LARGEST_CHUNK_BYTES, SMALLEST_CHUNK_BYTES, broadcast_chunk_bytes

ALIGNMENT = 64 * 2**10


@settings(deadline=None)
@given(st.integers(1, 10**12), st.integers(1, 200), st.floats(1e6, 1e11), st.floats(1e-7, 1e-2))
def test_no_other_size_within_the_bounds_is_much_better(weight_bytes, nodes, bandwidth, startup_s):
    def time_of(size):
        return chain_broadcast_time_s(weight_bytes, nodes, -(-weight_bytes // size), bandwidth, startup_s)

    found = broadcast_chunk_bytes(weight_bytes, nodes, bandwidth, startup_s)
    assert SMALLEST_CHUNK_BYTES <= found <= LARGEST_CHUNK_BYTES
    assert found % ALIGNMENT == 0
    for factor in (4, 2, 0.5, 0.25):
        other = int(found * factor)
        if SMALLEST_CHUNK_BYTES <= other <= LARGEST_CHUNK_BYTES and other <= weight_bytes:
            # The last chunk is smaller than the formula says, so a whole chunk more or less is within its error.
            chunk_s = max(found, other) / bandwidth + startup_s
            assert time_of(found) <= time_of(other) + (nodes + 1) * chunk_s


def test_the_papers_chunks_are_of_the_same_order():
    """72B in bfloat16 over 128 relays; Laminar's own are 32 MiB."""
    found = broadcast_chunk_bytes(145_400_000_000, 128, 100e9, 5e-6)
    assert found == SMALLEST_CHUNK_BYTES or CHUNK_BYTES / 64 < found < CHUNK_BYTES


def test_bounds():
    assert broadcast_chunk_bytes(10**10, 8, 1e9, 0) == SMALLEST_CHUNK_BYTES
    assert broadcast_chunk_bytes(10**10, 2, 1e9, 1e-3) == LARGEST_CHUNK_BYTES  # nothing to overlap
    assert broadcast_chunk_bytes(10**10, 2, 1e9, 1e-3, largest=2**20) == 2**20
    for smallest, largest in [(0, 2**20), (2**20, 2**19), (2**20 + 1, 2**21), (2**20, 2**32)]:
        with pytest.raises(ValueError, match="expected positive multiples"):
            broadcast_chunk_bytes(10**10, 8, 1e9, 1e-3, smallest=smallest, largest=largest)
