"""Laminar's actor stalls (section 8.3), 0.64 s (32B) and 1.40 s (72B), are one hop to the master at 100 GB/s."""

import math

import pytest

from tailrace.paramserver import CHUNK_BYTES, chain_broadcast_time_s


@pytest.mark.parametrize(("parameters", "modelled_s", "paper_s"), [(32.8e9, 0.66, 0.64), (72.7e9, 1.45, 1.40)])
def test_the_papers_actor_stalls(parameters, modelled_s, paper_s):
    weight_bytes = 2 * parameters  # bfloat16
    stall_s = chain_broadcast_time_s(weight_bytes, 2, math.ceil(weight_bytes / CHUNK_BYTES), 100e9, 0)
    assert stall_s == pytest.approx(modelled_s, abs=0.005)
    assert stall_s == pytest.approx(paper_s, rel=0.05)
