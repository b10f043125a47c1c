"""How full a KV cache becomes, beside a count of every step."""

import random

import pytest

from tailrace.repack.relocation import peak_kv


def peak_slowly(kv, left, capacity):
    """Step by step: each grows by a token, and is gone after its last."""
    each = kv * capacity / len(left)
    peak = total = kv * capacity
    for step in range(1, max([tokens or 0 for tokens in left]) + 1):
        total = sum(each if tokens is None else each + step for tokens in left if tokens is None or tokens >= step)
        peak = max(peak, total)
    return peak / capacity


def test_the_peak_is_that_of_a_count_of_every_step(seeds):
    for seed in seeds(200):
        draw = random.Random(seed)
        left = [draw.choice([None, draw.randint(1, 20), draw.randint(1, 400)]) for _ in range(draw.randint(1, 12))]
        kv, capacity = draw.random(), draw.randint(50, 5_000)
        assert peak_kv(kv, left, capacity) == pytest.approx(peak_slowly(kv, left, capacity)), f"seed {seed}"
        assert peak_kv(kv, [*left, None], capacity) >= kv


def test_what_is_not_known_stays_as_it_is():
    assert peak_kv(0.4, [], 1_000) == 0.4
    assert peak_kv(0.4, [100.0], 0) == 0.4
    assert peak_kv(0.4, [None, None], 1_000) == 0.4
