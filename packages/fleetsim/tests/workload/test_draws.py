"""What is drawn, against theory: marginals whatever the correlation, the correlation itself, order, drift, caps."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from statistics import NormalDist, fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.fleetsim.workload import Workload, WorkloadConfig
from tailrace.fleetsim.workload.lengths import SPAN
from tailrace.fleetsim.workload.random_numbers import LARGEST_NORMAL, draws

UNLIMITED = 10**9
STANDARD = NormalDist()
MIXTURE = [
    {"weight": 0.3, "median": 800, "sigma": 0.6},
    {"weight": 0.5, "mean": 9000, "sd": 1500},
    {"weight": 0.2, "median": 20000, "sigma": 0.4},
]


def mixture_below(tokens: float) -> float:
    log = math.log(tokens) if tokens > 0 else -math.inf
    return (
        0.3 * STANDARD.cdf((log - math.log(800)) / 0.6)
        + 0.5 * STANDARD.cdf((tokens - 9000) / 1500)
        + 0.2 * STANDARD.cdf((log - math.log(20000)) / 0.4)
    )


def lognormal_below(tokens: float) -> float:
    return STANDARD.cdf(math.log(tokens / 3500) / 0.99)


LOGNORMAL = {"median": 3500, "sigma": 0.99}
CASES = {"lognormal": (LOGNORMAL, lognormal_below), "mixture": (MIXTURE, mixture_below)}


def workload(seed: int = 1, max_tokens: int = UNLIMITED, **table: object) -> Workload:
    return WorkloadConfig.model_validate(table).build(seed, max_tokens)


def distance(values: list[int], below: Callable[[float], float]) -> float:
    """Kolmogorov and Smirnov's statistic, for lengths that were rounded to whole tokens."""
    ordered, count = sorted(values), len(values)
    return max(abs(bisect_right(ordered, value) / count - below(value + 0.5)) for value in set(values))


@pytest.mark.parametrize("correlation", [0.0, 0.06, 0.5, 0.92, 1.0])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.cases(3)
def test_lengths_have_their_distribution_whatever_the_correlation(case: str, correlation: float) -> None:
    response, below = CASES[case]
    seed, groups = 11, 6000
    drawn = workload(seed, response=response, correlation=correlation)
    for position in (0, 3):
        lengths = [drawn.group(index, 4)[position].response_tokens for index in range(groups)]
        # 1.95 / sqrt(n) is passed once in a thousand by chance; another distribution of the same median is far beyond.
        assert distance(lengths, below) < 1.95 / math.sqrt(groups), (seed, position)


def test_another_distribution_would_be_noticed() -> None:
    drawn = workload(11, response={"median": 3500, "sigma": 0.93})
    lengths = [drawn.group(index, 1)[0].response_tokens for index in range(20_000)]
    assert distance(lengths, lognormal_below) > 1.95 / math.sqrt(20_000)


@pytest.mark.parametrize("asked", [0.0, 0.06, 0.5, 0.92])
@pytest.mark.parametrize("case", CASES)
def test_the_correlation_is_the_one_asked_for(case: str, asked: float) -> None:
    response, below = CASES[case]
    seed, groups, size = 5, 2500, 8
    drawn = workload(seed, response=response, correlation=asked)
    scores = [[STANDARD.inv_cdf(below(one.response_tokens)) for one in drawn.group(i, size)] for i in range(groups)]
    # One-way analysis of variance.
    means = [fmean(group) for group in scores]
    overall = fmean(means)
    between = size * sum((mean - overall) ** 2 for mean in means) / (groups - 1)
    within = sum((one - mean) ** 2 for group, mean in zip(scores, means, strict=True) for one in group)
    within /= groups * (size - 1)
    measured = (between - within) / (between + (size - 1) * within)
    error = math.sqrt(2 / (groups * size * (size - 1))) * (1 - asked) * (1 + (size - 1) * asked)
    assert measured == pytest.approx(asked, abs=4 * error), seed


def test_a_correlation_of_one_makes_a_group_alike() -> None:
    drawn = workload(3, response=LOGNORMAL, correlation=1.0)
    assert all(len({one.response_tokens for one in drawn.group(index, 8)}) == 1 for index in range(50))


EVERYTHING = {
    "prompt": {"median": 150, "sigma": 0.4, "cap": 2048},
    "response": MIXTURE,
    "correlation": 0.4,
    "drift": [[0, 1.0], [100, 1.4]],
    "environment": {"calls": {"mean": 2.5, "max": 8}, "latency": {"median": 2.0, "sigma": 1.2, "cap": 60.0}},
    "solve_rate": {"mean": 0.4, "spread": 2.0},
    "reward_latency": {"median": 0.2, "sigma": 0.5},
}


@settings(deadline=None)  # the first example builds tables
@given(
    seed=st.integers(-(2**40), 2**40),
    questions=st.lists(
        st.tuples(st.integers(-50, 10**9), st.integers(0, 20), st.integers(0, 200)), min_size=1, max_size=8
    ),
)
def test_the_same_whatever_was_asked_before(seed: int, questions: list[tuple[int, int, int]]) -> None:
    asked = workload(seed, **EVERYTHING)
    for index, samples, version in questions:
        group = asked.group(index, samples, version)
        assert len(group) == samples
        fresh = workload(seed, **EVERYTHING)
        assert group == fresh.group(index, samples + 5, version)[:samples]
        assert fresh.sample(index, samples, version) == fresh.group(index, samples + 1, version)[-1]


def test_seeds_and_indices_differ() -> None:
    groups = {
        tuple(one.response_tokens for one in workload(seed, **EVERYTHING).group(index, 4))
        for seed in (-2, -1, 0, 1, 2)
        for index in (-2, -1, 0, 1, 2)
    }
    assert len(groups) == 25


def test_neighbouring_groups_are_independent() -> None:
    count = 40_000
    first = [draws(1, index, 2)[0][0] for index in range(count + 1)]
    assert abs(fmean(a * b for a, b in pairwise(first))) < 4 / math.sqrt(count)
    assert abs(fmean(first)) < 4 / math.sqrt(count)
    assert abs(fmean(one * one for one in first) - 1) < 4 * math.sqrt(2 / count)


def test_no_draw_leaves_the_table() -> None:
    assert math.sqrt(2) * LARGEST_NORMAL < SPAN
    normals, uniforms = draws(1, 1, 10_000)
    assert max(map(abs, normals)) <= LARGEST_NORMAL
    assert all(0 <= one < 1 for one in uniforms)
    assert abs(fmean(uniforms) - 0.5) < 4 / math.sqrt(12 * len(uniforms))


def test_drift_multiplies_lengths_before_the_cap() -> None:
    drawn = workload(2, 8000, response=LOGNORMAL, drift=[[0, 1.0], [100, 1.4]])
    for index in range(40):
        start, middle, end, beyond = (drawn.group(index, 8, version) for version in (0, 50, 100, 500))
        for a, b, c, d in zip(start, middle, end, beyond, strict=True):
            if a.response_tokens < 8000:
                assert b.response_tokens == pytest.approx(min(8000, 1.2 * a.response_tokens), abs=1.2)
                assert c.response_tokens == pytest.approx(min(8000, 1.4 * a.response_tokens), abs=1.3)
            assert c == d
            assert (a.prompt_tokens, a.reward) == (c.prompt_tokens, c.reward)


def test_growth_for_ever_ends_at_the_cap() -> None:
    drawn = workload(2, 8000, response=LOGNORMAL, drift=1.002)
    assert drawn.describe(0).response.mean < drawn.describe(300).response.mean < 8000
    assert {one.response_tokens for one in drawn.group(1, 8, 10**7)} == {8000}
    shrinking = workload(2, 8000, response=LOGNORMAL, drift=0.5)
    assert {one.response_tokens for one in shrinking.group(1, 8, 10**7)} == {1}


def test_responses_are_cut_at_the_limit_and_prompts_at_their_own() -> None:
    drawn = workload(4, 4000, response=LOGNORMAL, prompt={"median": 150, "sigma": 1.0, "cap": 200})
    samples = [one for index in range(400) for one in drawn.group(index, 4)]
    responses, prompts = [one.response_tokens for one in samples], [one.prompt_tokens for one in samples]
    assert max(responses) == 4000
    assert max(prompts) == 200
    description = drawn.describe()
    assert responses.count(4000) / len(responses) == pytest.approx(description.response.at_cap, abs=0.06)
    assert prompts.count(200) / len(prompts) == pytest.approx(description.prompt.at_cap, abs=0.1)
    assert description.response.longest == 4000


def test_one_setting_leaves_the_other_draws_alone() -> None:
    plain = workload(6, response=LOGNORMAL)
    other = workload(
        6, response=LOGNORMAL, environment=EVERYTHING["environment"], reward_latency={"median": 1.0, "sigma": 1.0}
    )
    for index in range(20):
        for a, b in zip(plain.group(index, 8), other.group(index, 8), strict=True):
            assert (a.prompt_tokens, a.response_tokens, a.reward) == (b.prompt_tokens, b.response_tokens, b.reward)


def test_scoring_takes_the_seconds_asked_for() -> None:
    drawn = workload(8, response=LOGNORMAL, reward_latency={"median": 2.0, "sigma": 0.8, "cap": 10.0})
    seconds = sorted(one.reward_s for index in range(1000) for one in drawn.group(index, 4))
    assert seconds[len(seconds) // 2] == pytest.approx(2.0, rel=0.08)
    assert seconds[-1] == 10.0
    assert all(one.reward_s == 0.0 for one in workload(8, response=LOGNORMAL).group(0, 4))
    constant = workload(8, response=LOGNORMAL, reward_latency={"median": 0.5})
    assert all(one.reward_s == 0.5 for one in constant.group(0, 4))


def test_the_description_is_for_reading() -> None:
    text = str(workload(1, 16_384, **EVERYTHING).describe())
    assert text.startswith("prompt: mean ")
    assert "\nresponse: mean " in text
    assert "environment: 2.5 calls" in text


def test_another_draw_of_a_prompt_keeps_what_is_the_prompts_and_has_samples_of_its_own() -> None:
    seed, groups, correlation = 5, 6000, 0.6
    scoring = [{"kind": "a", "median": 1.0, "sigma": 0.5}, {"kind": "b", "median": 2.0, "endless": 0.1}]
    drawn = workload(seed, response=LOGNORMAL, correlation=correlation, scoring=scoring)
    first = [drawn.group(index, 2) for index in range(groups)]
    assert first == [drawn.group(index, 2, draw=index) for index in range(groups)], seed
    again = [drawn.group(index, 2, draw=groups + index) for index in range(groups)]
    assert again == [drawn.group(index, 2, draw=groups + index) for index in range(groups)], seed
    for one, other in zip(first, again, strict=True):
        assert (one[0].prompt_tokens, one[0].kind) == (other[0].prompt_tokens, other[0].kind), seed
        assert one[0].turns != other[0].turns or one[1].turns != other[1].turns, seed
    logs = [[math.log(group[0].turns[0][0]) for group in side] for side in (first, again)]
    means = [fmean(side) for side in logs]
    both = fmean((a - means[0]) * (b - means[1]) for a, b in zip(*logs, strict=True)) / 0.99**2
    assert both == pytest.approx(correlation, abs=0.04), seed
    assert distance([sample.turns[0][0] for group in again for sample in group], lognormal_below) < 0.02, seed
