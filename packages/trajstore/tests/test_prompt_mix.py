"""Several pools as one stream: shares hold in every block, each pool comes in its own order, any index can be read first."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.trajstore import MixOrder, PromptMix, PromptPool


def pool(name, count, seed=None):
    return PromptPool([{"prompt": f"{name}{row}", "answer": "a"} for row in range(count)], shuffle_seed=seed)


def names(mix, count):
    return [mix[index].prompt[0] for index in range(count)]


def test_shares_hold_in_every_block():
    mix = PromptMix([pool("a", 3), pool("b", 50)], [0.3, 0.7], shuffle_seed=1)
    for block in range(5):
        assert Counter(mix[10 * block + place].prompt[0] for place in range(10)) == {"a": 3, "b": 7}
    assert names(mix, 10) != names(PromptMix([pool("a", 3), pool("b", 50)], [0.3, 0.7], shuffle_seed=2), 10)
    assert "".join(names(PromptMix([pool("a", 3), pool("b", 9)], [1, 2]), 6)) == "babbab"


def test_shares_that_no_small_block_shows():
    mix = PromptMix([pool("a", 3), pool("b", 3), pool("c", 3)], [1, 2**0.5, 1e-9], shuffle_seed=1)
    assert Counter(names(mix, 1001)) == {"a": 414, "b": 586, "c": 1}


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(0, 9)),
)
def test_each_pool_is_read_in_its_own_order_and_any_index_first(shapes, seed):
    def build():
        pools = [pool("abcd"[place], rows, seed) for place, (rows, _) in enumerate(shapes)]
        return pools, PromptMix(pools, [share for _, share in shapes], shuffle_seed=seed)

    pools, mix = build()
    found = [mix[index] for index in range(60)]
    assert [prompt.index for prompt in found] == list(range(60))
    for place, one in enumerate(pools):
        mine = [prompt for prompt in found if prompt.prompt[0] == "abcd"[place]]
        assert [prompt.prompt for prompt in mine] == [one[index].prompt for index in range(len(mine))]
        first = sum(rows for rows, _ in shapes[:place])
        assert {prompt.row for prompt in mine} <= set(range(first, first + len(one)))
    assert len(mix) == sum(rows for rows, _ in shapes)
    order = MixOrder([share for _, share in shapes], shuffle_seed=seed)
    assert ["abcd"[order.pool(index)] for index in range(60)] == [prompt.prompt[0] for prompt in found]
    _, fresh = build()
    assert [fresh[index] for index in reversed(range(60))] == found[::-1]


def test_what_is_no_mix():
    for pools, shares in (([], []), ([pool("a", 1)], [1, 2])):
        with pytest.raises(ValueError, match="expected a share above 0 for each pool"):
            PromptMix(pools, shares)
    for shares in ([], [1.0, 0.0], [math.inf, 1.0], [math.nan]):
        with pytest.raises(ValueError, match="expected at least one, and each finite and above 0"):
            MixOrder(shares)
    for shares in ([0.0], [math.inf]):
        with pytest.raises(ValueError, match="expected at least one, and each finite and above 0"):
            PromptMix([pool("a", 1)], shares)
    with pytest.raises(TypeError, match="shuffle_seed: found 'x', expected a whole number or None"):
        PromptMix([pool("a", 1)], [1.0], shuffle_seed="x")  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="-1"):
        PromptMix([pool("a", 1)], [1])[-1]
