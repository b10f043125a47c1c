"""Prefill."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.fleetsim.cost import PrefillCost
from tailrace.fleetsim.hardware import device, model


def test_the_formula():
    # (2 P s + 2 L nq dh s^2) / (TP F)
    flops = 2 * 31.98e9 * 8192 + 2 * 64 * 40 * 128 * 8192**2
    expected = flops / (4 * 0.65 * 989e12)
    assert PrefillCost.of(model("Qwen2.5-32B"), device("H800"), 4).seconds(8192) == pytest.approx(expected, rel=1e-3)


def test_an_h20_is_bound_by_arithmetic():
    flops = 2 * 3.04e9 * 4096 + 2 * 48 * 32 * 128 * 4096**2
    expected = flops / (0.95 * 148e12)
    assert PrefillCost.of(model("Qwen3-30B-A3B"), device("H20"), 1).seconds(4096) == pytest.approx(expected, rel=1e-3)


def test_cached_tokens_by_counting():
    cost = PrefillCost(3.0, 1.0, overhead_s=100.0)
    # Tokens 5 to 8 are multiplied; each attends to all before it: 2 i - 1 in units of the square's share.
    assert cost.seconds(8, cached=4) == 100 + 4 * 3 + sum(2 * index - 1 for index in range(5, 9))
    assert cost.seconds(8) == 100 + 8 * 3 + 64
    assert cost.seconds(8, cached=8) == cost.seconds(0) == 0.0


names = st.sampled_from([("Qwen2.5-7B", "H800", 1), ("Qwen2.5-72B", "H20", 8), ("Qwen3-30B-A3B", "A100", 2)])


@given(names, st.integers(0, 50_000), st.integers(0, 50_000), st.integers(0, 50_000))
def test_longer_takes_longer_and_chunks_add_up(which, one, two, three):
    name, gpu, size = which
    cost = PrefillCost.of(model(name), device(gpu), size)
    first, middle, last = sorted((one, two, three))
    assert cost.seconds(first) <= cost.seconds(last)
    assert cost.seconds(last, cached=middle) <= cost.seconds(last, cached=first)
    whole = cost.seconds(last, cached=first)
    assert cost.seconds(middle, cached=first) + cost.seconds(last, cached=middle) == pytest.approx(whole, abs=1e-12)
