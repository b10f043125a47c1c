import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.contracts import plugins
from tailrace.trainer import group_advantages, token_weights
from tailrace.trainer.advantages import Advantages, open_advantages, overlong_penalty, units
from tailrace.trainer.testing import check_advantages


def of_groups(name):
    found = open_advantages(name, {})
    assert isinstance(found, Advantages)
    return found


batch_advantages, leave_one_out = of_groups("batch"), of_groups("leave-one-out")


def test_worked_by_hand():
    # Group "a": rewards 1 0 0 1, mean 1/2, variance 1/4, std 1/2: advantages +1 -1 -1 +1.
    # Group "b": rewards 1 0 0 0, mean 1/4, variance (9/16 + 3/16) / 4 = 3/16, std sqrt(3)/4:
    # (3/4) / (sqrt(3)/4) = sqrt(3) and (-1/4) / (sqrt(3)/4) = -1/sqrt(3).
    groups = ["a", "b", "a", "b", "a", "b", "a", "b"]
    rewards = [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    low = -1 / math.sqrt(3)
    assert group_advantages(groups, rewards) == pytest.approx([1, math.sqrt(3), -1, low, -1, low, 1, low])
    assert group_advantages(groups, rewards, divide_by_std=False) == [0.5, 0.75, -0.5, -0.25, -0.5, -0.25, 0.5, -0.25]


@given(st.floats(-10, 10), st.integers(1, 9))
def test_equal_rewards_say_nothing(reward, size):
    assert group_advantages([0] * size, [reward] * size) == pytest.approx([0.0] * size, abs=1e-12)


ROUNDED = [0.1 + 0.2, 0.3, 3 * 0.1, 1 - 0.7]  # differ in their last places


@given(st.permutations(ROUNDED), st.sampled_from([-1e5, -1.0, 1e-3, 1.0, 1e5]), st.booleans())
def test_rewards_that_differ_by_rounding_say_nothing(rewards, scale, divide_by_std):
    rewards, groups = [scale * reward for reward in rewards], [0] * 4
    assert len(set(rewards)) > 1
    assert group_advantages(groups, rewards, divide_by_std=divide_by_std) == [0.0] * 4
    assert batch_advantages(groups, rewards) == [0.0] * 4
    alone = group_advantages([1, 1], [1.0, 0.0], divide_by_std=divide_by_std)
    assert group_advantages([*groups, 1, 1], [*rewards, 1.0, 0.0], divide_by_std=divide_by_std)[4:] == alone


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), min_size=1, max_size=40))
def test_each_group_has_mean_zero_and_variance_one(pairs):
    groups, rewards = zip(*pairs, strict=True)
    advantages = group_advantages(groups, [float(reward) for reward in rewards])
    for group in set(groups):
        mine = [a for a, g in zip(advantages, groups, strict=True) if g == group]
        assert sum(mine) == pytest.approx(0.0, abs=1e-9)
        if len({r for r, g in zip(rewards, groups, strict=True) if g == group}) > 1:
            assert sum(a * a for a in mine) / len(mine) == pytest.approx(1.0)


def test_token_weights_by_hand():
    # Lengths 3 and 1. Token mean: each of 4 tokens 1/4. Sequence mean: 1/2 * 1/3 for each of 3 tokens, 1/2 * 1/1 for one.
    assert token_weights([3, 1], "token") == [1.0, 1.0]
    assert units([3, 1], "token") == 4
    assert token_weights([3, 0, 1], "sequence") == pytest.approx([1 / 3, 0.0, 1.0])
    assert units([3, 0, 1], "sequence") == 2


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20).filter(any), st.sampled_from(["token", "sequence"]))
def test_token_weights_add_up_to_one(lengths, normalisation):
    weights = token_weights(lengths, normalisation)
    total = sum(n * w for n, w in zip(lengths, weights, strict=True))
    assert total / units(lengths, normalisation) == pytest.approx(1.0)


def test_batch_advantages_by_hand():
    # Centred within groups: 1/2 -1/2, then 0 0 and 2 -2. Their mean square is (1/2 + 8) / 6, the standard deviation its root.
    groups, rewards = [0, 0, 1, 1, 2, 2], [1.0, 0.0, 5.0, 5.0, 4.0, 0.0]
    std = math.sqrt(8.5 / 6)
    assert batch_advantages(groups, rewards) == pytest.approx([0.5 / std, -0.5 / std, 0, 0, 2 / std, -2 / std])
    assert batch_advantages([0, 0], [0.1, 0.1]) == [0, 0]


def test_leave_one_out_and_centred_by_hand():
    # Group "a": 1 against the mean 0 of 0 0, and 0 against 1/2 twice. Group "b" has one response, and "c" equal rewards.
    groups, rewards = ["a", "a", "a", "b", "c", "c"], [1.0, 0.0, 0.0, 5.0, 0.3, 0.1 + 0.2]
    assert leave_one_out(groups, rewards) == pytest.approx([1, -0.5, -0.5, 0, 0, 0])
    assert of_groups("centred")(groups, rewards) == pytest.approx([2 / 3, -1 / 3, -1 / 3, 0, 0, 0])
    assert of_groups("group")(groups, rewards) == group_advantages(groups, rewards)


def test_the_overlong_penalty_by_hand():
    # Longest 100, buffer 20: none up to 80, then 1/20 for each token, -1 at the end.
    assert [overlong_penalty(length, 100, 20) for length in (0, 80, 81, 90, 100, 130)] == [0, 0, -0.05, -0.5, -1, -1]


@given(st.integers(1, 50), st.integers(1, 100))
def test_constant_weights_are_those_of_every_length(length, constant):
    assert token_weights([length, 0], "constant", constant) == [1 / constant, 0.0]
    assert units([length, 0], "constant") == 1


@pytest.mark.parametrize("name", plugins.names("tailrace.advantages"))
def test_they_keep_the_contract(name):
    check_advantages(open_advantages(name, {}))


@dataclasses.dataclass(frozen=True)
class Wrong(Advantages):
    """Over the batch, without saying so."""

    def __call__(self, groups, rewards):
        return [reward - sum(rewards) / len(rewards) for reward in rewards]


def test_the_contract_finds_advantages_that_need_the_batch_and_do_not_say_so():
    with pytest.raises(AssertionError, match="needs_batch"):
        check_advantages(Wrong())
