"""Turns: calls, their seconds, and how a response is cut."""

from __future__ import annotations

import math
import random
from collections import Counter
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.fleetsim.workload.environment import Calls, EnvironmentWorkload, Latency


@given(
    seed=st.integers(0, 2**32),
    tokens=st.integers(1, 20_000),
    counts=st.dictionaries(st.integers(0, 30), st.floats(0.1, 100.0), min_size=1),
    most=st.none() | st.integers(0, 10),
)
def test_turns_add_up(seed: int, tokens: int, counts: dict[int, float], most: int | None) -> None:
    calls = Calls.of(counts, most)
    turns = EnvironmentWorkload(calls, Latency(2.0, 1.2, 60.0)).turns(random.Random(seed), tokens)
    assert sum(part for part, _ in turns) == tokens
    assert all(part >= 1 for part, _ in turns)
    assert turns[-1][1] == 0.0
    assert all(0.0 < seconds <= 60.0 for _, seconds in turns[:-1])
    allowed = {number if most is None else min(most, number) for number in counts}
    assert len(turns) in {min(tokens, number + 1) for number in allowed}


def test_calls_have_their_frequencies() -> None:
    seed, count = 4, 40_000
    weights = {0: 1.0, 2: 3.0, 3: 0.0, 7: 6.0}
    calls, generator = Calls.of(weights), random.Random(seed)
    seen = Counter(calls.draw(generator) for _ in range(count))
    for number, weight in weights.items():
        assert seen[number] / count == pytest.approx(weight / 10, abs=4 * 0.5 / math.sqrt(count)), seed
    assert calls.mean == pytest.approx(4.8)


def test_more_calls_than_allowed_stop_at_the_limit() -> None:
    assert Calls.of({1: 2.0, 5: 3.0, 9: 5.0}, 4).weights == ((1, 2.0), (4, 8.0))


@given(least=st.integers(0, 5), width=st.integers(1, 60), share=st.floats(0.0, 1.0))
def test_calls_around_a_mean(least: int, width: int, share: float) -> None:
    most = least + width
    mean = least + share * width
    calls = Calls.around(mean, least, most)
    assert calls.mean == pytest.approx(mean, abs=1e-6)
    assert all(least <= number <= most for number, _ in calls.weights)


def test_a_response_is_cut_evenly() -> None:
    seed = 6
    environment, generator = EnvironmentWorkload(Calls.of({3: 1.0}), Latency(1.0)), random.Random(seed)
    turns = [environment.turns(generator, 1000) for _ in range(8000)]
    for position in range(4):
        # Each of four uniform spacings: mean 1/4, standard deviation sqrt(3/80).
        mean = fmean(one[position][0] for one in turns)
        assert mean == pytest.approx(250, abs=4 * 1000 * math.sqrt(3 / 80 / 8000)), (seed, position)


@pytest.mark.parametrize("latency", [Latency(2.0, 1.2, 60.0), Latency(2.0, 0.5), Latency(3.0), Latency(5.0, 1.0, 5.0)])
def test_seconds_have_their_mean(latency: Latency) -> None:
    seed, count = 8, 100_000
    seconds = latency.draw(random.Random(seed), count)
    assert len(seconds) == count
    mean = fmean(seconds)
    error = math.sqrt(fmean((one - mean) ** 2 for one in seconds) / count)
    assert latency.mean_s == pytest.approx(mean, abs=4 * error + 1e-9), seed
    assert max(seconds) <= latency.cap_s


@given(st.integers(0, 2**32), st.integers(0, 9), st.integers(0, 9))
def test_more_seconds_begin_with_the_same(seed: int, fewer: int, more: int) -> None:
    latency = Latency(2.0, 1.2, 60.0)
    longer = latency.draw(random.Random(seed), fewer + more)
    assert longer[:fewer] == latency.draw(random.Random(seed), fewer)
