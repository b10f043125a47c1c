"""Recorded groups, drawn anew."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_machine import FLAT, GROUPS

from tailrace.fleetsim.profile.fleet import MeasuredWorkload, grown
from tailrace.fleetsim.profile.machine import Curve, WorkloadPart
from tailrace.trajstore import MixOrder


def workload(seed=0, max_tokens=192, **trends):
    part = WorkloadPart(groups=GROUPS, **{"signal": FLAT, "length": FLAT, **trends})
    return MeasuredWorkload(part, seed=seed, max_tokens=max_tokens)


@given(st.integers(0, 99), st.integers(-500, 10_000), st.integers(0, 80))
def test_a_group_is_one_that_was_recorded_whoever_asks(seed, index, version):
    group = workload(seed).group(index, 4, version)
    recorded = [(prompt, lengths, rewards) for _, prompt, lengths, rewards in GROUPS]
    assert (
        group[0].prompt_tokens,
        tuple(one.response_tokens for one in group),
        tuple(one.reward for one in group),
    ) in recorded
    assert group == workload(seed).group(index, 4, version)
    assert workload(seed).group(index, 7, version)[:4] == group
    assert workload(seed).group(index, 7, version)[4].response_tokens == group[0].response_tokens


@pytest.mark.parametrize("odds", [-1.5, 0.0, 2.0])
def test_signals_are_as_frequent_as_the_trend_says(odds):
    drawn = workload(signal=Curve(points=((0.0, 0.0), (10.0, odds))))
    with_signal = sum(len({one.reward for one in drawn.group(index, 4, 10)}) > 1 for index in range(4_000))
    assert with_signal / 4_000 == pytest.approx(1 / (1 + 2.718281828**-odds), abs=0.03)


def test_lengths_grow_with_the_trend_and_stop_at_the_limit():
    grown = workload(max_tokens=100, length=Curve(points=((0.0, 0.0), (100.0, 10.0))))
    for index in range(50):
        then, later = workload().group(index, 4), grown.group(index, 4, 30)
        for before, after in zip(then, later, strict=True):
            assert before.response_tokens < after.response_tokens <= 100


def test_without_either_kind_the_other_is_drawn():
    part = WorkloadPart(groups=GROUPS[1:2], signal=FLAT, length=FLAT)
    assert MeasuredWorkload(part, seed=0, max_tokens=192).group(3, 4)[0].response_tokens == 40


def test_its_description_is_that_of_what_is_drawn():
    drawn = workload(signal=Curve(points=((0.0, 1.0),)))
    lengths = [one.response_tokens for index in range(8_000) for one in drawn.group(index, 4)]
    described = drawn.describe()
    assert described.response.mean == pytest.approx(sum(lengths) / len(lengths), rel=0.02)
    assert described.response.longest == 44
    assert "4 groups of a profile; 73% of groups have a signal at version 0" in str(described)


def test_a_prompt_of_a_mix_is_a_group_of_its_source_with_the_seconds_of_its_scores():
    seconds = tuple((float(at),) * len(group[2]) for at, group in enumerate(GROUPS))
    sources = tuple(at % 2 for at in range(len(GROUPS)))
    part = WorkloadPart(groups=GROUPS, sources=sources, score_s=seconds, signal=FLAT, length=FLAT)
    order = MixOrder((2.0, 1.0), shuffle_seed=4)
    drawn = MeasuredWorkload(part, seed=1, max_tokens=192, order=order)
    for index in range(200):
        for draw in (None, 1000 + index):
            group = drawn.group(index, 4, draw=draw)
            assert {one.reward_s % 2 for one in group} == {order.pool(index)}
            assert len({one.reward_s for one in group}) == 1


def test_another_draw_picks_among_the_samples_of_the_same_group():
    drawn = workload()
    for index in range(50):
        first, again = drawn.group(index, 4), drawn.group(index, 40, draw=900)
        assert {one.response_tokens for one in again} == {one.response_tokens for one in first}


TURNS = st.lists(st.tuples(st.integers(1, 60), st.floats(0, 9)), min_size=1, max_size=6).map(
    lambda turns: (*turns[:-1], (turns[-1][0], 0.0))
)


@given(TURNS, st.floats(0.2, 5), st.integers(1, 200))
def test_turns_that_grow_keep_their_seconds_until_the_limit(turns, factor, most):
    found = grown(turns, factor, most)
    assert sum(tokens for tokens, _ in found) <= most
    assert all(tokens >= 1 for tokens, _ in found)
    assert found[-1][1] == 0.0
    assert [seconds for _, seconds in found[:-1]] == [seconds for _, seconds in turns[: len(found) - 1]]
    if len(found) < len(turns):
        assert sum(tokens for tokens, _ in found) == most
    assert grown(turns, 1.0, 10_000) == turns


def test_samples_have_their_own_turns():
    turns = tuple(tuple(((tokens - 3, 0.25), (3, 0.0)) for tokens in group[2]) for group in GROUPS)
    drawn = workload(turns=turns)
    assert drawn.turns
    assert not workload().turns
    for index in range(30):
        for one in drawn.group(index, 4):
            assert one.turns == ((one.response_tokens - 3, 0.25), (3, 0.0))
    assert drawn.describe().calls == pytest.approx(1.0)
    assert drawn.describe().environment_s == pytest.approx(0.25)
