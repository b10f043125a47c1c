"""The experience buffer: nothing leaves unseen; samplers and eviction policies keep their contracts."""

import dataclasses
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.contracts import Candidate
from tailrace.contracts.plugins import load, names
from tailrace.trajstore import (
    BufferFullError,
    BufferLookupError,
    ExperienceBuffer,
    Fifo,
    Lifo,
    Newest,
    Oldest,
    PolicyError,
    RewardVariance,
    Stalest,
)
from tailrace.trajstore.testing import check_eviction, check_sampler, random_candidates


def group(key, version=0, rewards=(0.0, 1.0), order=None):
    return Candidate(key=key, version=version, order=key if order is None else order, rewards=rewards, tokens=10)


SAMPLERS = [Fifo(), Lifo(), Newest(), RewardVariance()]
EVICTIONS = [Oldest(), Stalest()]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_sampler_contract(sampler):
    check_sampler(sampler)


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_eviction_contract(eviction):
    check_eviction(eviction)


class Repeats:
    def pick(self, candidates, count):
        return [candidates[0].key] * count


class Few:
    def pick(self, candidates, count):
        return [candidate.key for candidate in candidates[: count // 2]]


class Strangers:
    def pick(self, candidates, count):
        return range(-count, 0)


@pytest.mark.parametrize(
    ("sampler", "words"), [(Repeats(), "twice"), (Few(), "expected"), (Strangers(), "not all keys")]
)
def test_the_sampler_contract_catches(sampler, words):
    with pytest.raises(AssertionError, match=words):
        check_sampler(sampler)


@pytest.mark.parametrize("sampler", [Repeats(), Few(), Strangers()])
def test_the_buffer_catches_a_broken_sampler_and_loses_nothing(sampler):
    buffer = ExperienceBuffer(sampler=sampler)
    for key in range(4):
        buffer.put(group(key))
    with pytest.raises(PolicyError, match=type(sampler).__name__):
        buffer.sample(3)
    assert len(buffer) == 4


def test_what_each_sampler_prefers():
    groups = [group(1, version=2, rewards=(1.0, 1.0)), group(2, version=1), group(3, version=2, rewards=(0.0, 0.5))]
    assert [list(sampler.pick(groups, 3)) for sampler in SAMPLERS] == [[1, 2, 3], [3, 2, 1], [1, 3, 2], [2, 3, 1]]


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_reward_variance_equals_the_textbook(seed, count):
    groups = random_candidates(random.Random(seed), count)
    picked = RewardVariance().pick(groups, count)
    by_key = {candidate.key: candidate for candidate in groups}
    variances = [statistics.pvariance(by_key[key].rewards) for key in picked]
    assert variances == pytest.approx(sorted(variances, reverse=True))
    alike = group(0, rewards=(0.1,) * 7)
    assert RewardVariance().pick([alike, group(1, rewards=())], 2) == [0, 1]


def test_first_in_first_out_and_each_once():
    buffer = ExperienceBuffer()
    for key in (3, 1, 2):
        assert buffer.put(group(key)) == []
    assert [candidate.key for candidate in buffer.sample(2)] == [1, 2]
    assert 3 in buffer
    assert 1 not in buffer
    assert [candidate.key for candidate in buffer.sample(1)] == [3]
    assert buffer.sample(0) == []
    with pytest.raises(BufferLookupError, match="found 0 groups"):
        buffer.sample(1)


def test_a_full_buffer_refuses():
    buffer = ExperienceBuffer(2)
    buffer.put(group(1))
    buffer.put(group(2))
    assert buffer.full
    with pytest.raises(BufferFullError, match="2 groups of at most 2"):
        buffer.put(group(3))
    assert [candidate.key for candidate in buffer.candidates] == [1, 2]
    assert buffer.remove(1) == group(1)
    assert buffer.put(group(3)) == []
    with pytest.raises(BufferLookupError, match="no group 1"):
        buffer.remove(1)
    with pytest.raises(PolicyError, match="group 3 in the buffer already"):
        buffer.put(group(3))


def test_evictions_are_told_even_of_the_newcomer():
    oldest = ExperienceBuffer(2, eviction=Oldest())
    assert [oldest.put(group(key)) for key in (1, 2, 3)] == [[], [], [1]]
    stalest = ExperienceBuffer(2, eviction=Stalest())
    assert [stalest.put(group(key, version)) for key, version in ((1, 5), (2, 4), (3, 6), (4, 2))] == [[], [], [2], [4]]
    assert [candidate.key for candidate in stalest.candidates] == [1, 3]


@given(
    st.lists(st.tuples(st.sampled_from(["put", "put", "sample", "remove"]), st.integers(0, 3)), max_size=60),
    st.sampled_from(SAMPLERS),
    st.sampled_from(EVICTIONS),
    st.none() | st.integers(1, 5),
)
def test_every_group_is_in_the_buffer_or_was_handed_out_once(steps, sampler, eviction, capacity):
    buffer, out, key = ExperienceBuffer(capacity, sampler=sampler, eviction=eviction), [], 0
    for action, number in steps:
        if action == "put":
            out += buffer.put(group(key, version=number))
            key += 1
        elif action == "sample" and number <= len(buffer):
            out += [candidate.key for candidate in buffer.sample(number)]
        elif action == "remove" and len(buffer):
            out.append(buffer.remove(buffer.candidates[number % len(buffer)].key).key)
        assert capacity is None or len(buffer) <= capacity
        assert sorted(out + [candidate.key for candidate in buffer.candidates]) == list(range(key))


def test_capacity_and_broken_eviction():
    with pytest.raises(PolicyError, match="capacity=0"):
        ExperienceBuffer(0)

    class Generous:
        def evict(self, candidates, count):
            return []

    buffer = ExperienceBuffer(1, eviction=Generous())
    buffer.put(group(1))
    with pytest.raises(PolicyError, match="Generous chose"):
        buffer.put(group(2))
    assert [candidate.key for candidate in buffer.candidates] == [1]


def test_policies_are_values_and_plugins():
    for policies, entry_group in ((SAMPLERS, "tailrace.sampler"), (EVICTIONS, "tailrace.eviction")):
        registered = {load(entry_group, name) for name in names(entry_group)}
        for policy in policies:
            assert type(policy) in registered
            assert policy == type(policy)()
            assert dataclasses.is_dataclass(policy)
    assert {"fifo", "lifo", "newest", "reward-variance"} <= set(names("tailrace.sampler"))
    assert {"oldest", "stalest"} <= set(names("tailrace.eviction"))
