"""Samplers and eviction policies keep their contracts, and prefer what they say."""

import dataclasses
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.contracts import Candidate
from tailrace.contracts.plugins import load, names
from tailrace.trajstore import Fifo, InOrder, Lifo, Newest, Oldest, RewardVariance, Stalest
from tailrace.trajstore.testing import check_eviction, check_sampler, random_candidates


def group(key, version=0, rewards=(0.0, 1.0), order=None):
    return Candidate(key=key, version=version, order=key if order is None else order, rewards=rewards, tokens=10)


SAMPLERS: list[Any] = [Fifo(), InOrder(), Lifo(), Newest(), RewardVariance()]
EVICTIONS: list[Any] = [Oldest(), Stalest()]


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


def test_what_each_sampler_prefers():
    groups = [
        group(1, version=2, rewards=(1.0, 1.0), order=2),
        group(2, version=1, order=0),
        group(3, version=2, rewards=(0.0, 0.5), order=1),
    ]
    assert {type(sampler): list(sampler.pick(groups, 3)) for sampler in SAMPLERS} == {
        Fifo: [2, 3, 1],
        InOrder: [1, 2, 3],
        Lifo: [1, 3, 2],
        Newest: [3, 1, 2],
        RewardVariance: [2, 3, 1],
    }


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_reward_variance_equals_the_textbook(seed, count):
    groups = random_candidates(random.Random(seed), count)
    picked = RewardVariance().pick(groups, count)
    by_key = {candidate.key: candidate for candidate in groups}
    variances = [statistics.pvariance(by_key[key].rewards) for key in picked]
    assert variances == pytest.approx(sorted(variances, reverse=True))
    alike = group(0, rewards=(0.1,) * 7)
    assert RewardVariance().pick([alike, group(1, rewards=())], 2) == [0, 1]
    rounded = group(1, order=1, rewards=(0.1 + 0.2, 0.3))  # no spread at all
    assert RewardVariance().pick([rounded, alike], 2) == [0, 1]


def test_what_each_eviction_lets_go():
    groups = [group(1, version=2), group(2, version=1), group(3, version=1), group(4, version=0, order=9)]
    assert [list(eviction.evict(groups, 2)) for eviction in EVICTIONS] == [[1, 2], [4, 2]]


def test_policies_are_values_and_plugins():
    for policies, entry_group in ((SAMPLERS, "tailrace.sampler"), (EVICTIONS, "tailrace.eviction")):
        registered = {load(entry_group, name) for name in names(entry_group)}
        for policy in policies:
            assert type(policy) in registered
            assert policy == type(policy)()
            assert dataclasses.is_dataclass(policy)
    assert {"fifo", "lifo", "newest", "reward-variance"} <= set(names("tailrace.sampler"))
    assert {"oldest", "stalest"} <= set(names("tailrace.eviction"))
