import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.paramserver import CHUNK_BYTES, chain_broadcast_time_s, optimal_chunks

BYTES_72B = 72.7e9 * 2  # Qwen2.5-72B in bfloat16
HOP = 100e9  # the effective bandwidth of a hop that the paper's figures imply, bytes per second


def walk(weight_bytes, nodes, chunks, bandwidth, startup_s):
    """The reference: every chunk over every hop, one at a time on each."""
    step = weight_bytes / chunks / bandwidth + startup_s
    free = [0.0] * nodes  # when each node's outgoing link is free
    last = 0.0
    for _ in range(chunks):
        there = 0.0
        for hop in range(nodes - 1):
            there = max(there, free[hop]) + step
            free[hop] = there
        last = there
    return last


def test_paper_figures():
    chunks = math.ceil(BYTES_72B / CHUNK_BYTES)
    wide = chain_broadcast_time_s(BYTES_72B, 128, chunks, HOP, 5e-6)
    assert 1.4 < wide < 1.6  # section 4.2: under 1.6 s from the master to 127 relays
    assert wide / chain_broadcast_time_s(BYTES_72B, 2, chunks, HOP, 5e-6) == pytest.approx(1.028, abs=0.002)


@settings(deadline=None)
@given(st.floats(1, 1e9), st.integers(1, 12), st.integers(1, 40), st.floats(1e3, 1e9), st.floats(0, 1e-2))
def test_equals_a_walk_over_the_chain(weight_bytes, nodes, chunks, bandwidth, startup_s):
    found = chain_broadcast_time_s(weight_bytes, nodes, chunks, bandwidth, startup_s)
    assert found == pytest.approx(walk(weight_bytes, nodes, chunks, bandwidth, startup_s))


@settings(deadline=None)
@given(st.floats(1, 1e6), st.integers(2, 40), st.floats(1e3, 1e6), st.floats(1e-2, 1))
def test_no_chunk_count_beats_the_optimum(weight_bytes, nodes, bandwidth, startup_s):
    def time_of(chunks):
        return chain_broadcast_time_s(weight_bytes, nodes, chunks, bandwidth, startup_s)

    best = optimal_chunks(weight_bytes, nodes, bandwidth, startup_s)
    assert all(time_of(best) <= time_of(chunks) * (1 + 1e-9) for chunks in range(1, 2 * best + 3))


def test_limits():
    assert optimal_chunks(1e9, 2, HOP, 1e-6) == 1  # nothing to overlap
    assert optimal_chunks(1000, 8, HOP, 0) == 1000
    assert chain_broadcast_time_s(1e9, 1, 4, HOP, 1) == 0.0
    for bad in [(1, 0, 1, 1, 0), (1, 1, 0, 1, 0), (-1, 1, 1, 1, 0), (1, 1, 1, 0, 0), (1, 1, 1, 1, -1)]:
        with pytest.raises(ValueError, match="expected"):
            chain_broadcast_time_s(*bad)
