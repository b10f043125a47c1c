"""Recall and tau-b against their definitions, written out."""

import itertools
import math
import random
from fractions import Fraction

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.ranker import Example, LengthRanker, MeasureError, UnknownMethodError, recall, tau_b
from tailrace.ranker.recall import compare_orders, tail_count

SMALL = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=5)
SHARES = st.sampled_from([0.05, 0.1, 0.2, 0.5, 0.6, 1.0])


def recall_by_all_orders(scores, lengths, share):
    """The mean over every way to break the ties, on both sides."""
    count = math.ceil(Fraction(str(share)) * len(scores))
    tops = []
    for values in (scores, lengths):
        orders = itertools.permutations(range(len(values)))
        sorted_ones = (order for order in orders if all(values[a] >= values[b] for a, b in itertools.pairwise(order)))
        tops.append([set(order[:count]) for order in sorted_ones])
    hits = [Fraction(len(chosen & long), count) for chosen in tops[0] for long in tops[1]]
    return sum(hits) / len(hits)


@settings(deadline=None, max_examples=60)
@given(SMALL, SHARES)
def test_recall_is_the_mean_over_all_ways_to_break_ties(rows, share):
    scores, lengths = zip(*rows, strict=True)
    assert recall(scores, lengths, share) == pytest.approx(float(recall_by_all_orders(scores, lengths, share)))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=200), SHARES)
def test_constant_scores_give_k_of_n_and_the_lengths_themselves_give_all(lengths, share):
    count = tail_count(len(lengths), share)
    assert recall([1.0] * len(lengths), lengths, share) == pytest.approx(count / len(lengths))
    if len(set(lengths)) == len(lengths):
        assert recall(lengths, lengths, share) == 1.0
        assert recall([-length for length in lengths], lengths, share) == pytest.approx(
            max(0, 2 * count - len(lengths)) / count
        )


@given(st.lists(st.tuples(st.floats(-9, 9), st.integers(1, 9)), min_size=1, max_size=60), st.randoms(), SHARES)
def test_the_order_of_the_rows_and_the_scale_of_the_scores_say_nothing(rows, random, share):
    before = recall(*zip(*rows, strict=True), share)  # type: ignore[arg-type, call-arg]
    random.shuffle(rows)
    assert recall(*zip(*rows, strict=True), share) == pytest.approx(before)  # type: ignore[arg-type, call-arg]
    scores, lengths = zip(*rows, strict=True)
    assert recall([math.atan(score) if abs(score) > 1e-6 else score for score in scores], lengths, share) >= 0


def test_shares_are_decimal_numbers():
    assert [tail_count(100, share) for share in (0.07, 0.2, 0.29, 1.0)] == [7, 20, 29, 100]
    assert [tail_count(count, 0.2) for count in (1, 5, 6, 10, 11)] == [1, 1, 2, 2, 3]


def test_tau_b_by_hand():
    assert tau_b([1, 2, 3], [1, 2, 3]) == 1
    assert tau_b([1, 2, 3], [3, 2, 1]) == -1
    assert tau_b([1, 1, 1], [1, 2, 3]) == 0
    assert tau_b([1, 2, 2], [1, 2, 3]) == pytest.approx(2 / math.sqrt(2 * 3))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=40))
def test_tau_b_by_all_pairs(rows):
    scores, lengths = zip(*rows, strict=True)
    sign = lambda value: (value > 0) - (value < 0)  # noqa: E731
    pairs = list(itertools.combinations(range(len(rows)), 2))
    one = [sign(scores[a] - scores[b]) for a, b in pairs]
    other = [sign(lengths[a] - lengths[b]) for a, b in pairs]
    free = sum(map(abs, one)) * sum(map(abs, other))
    expected = sum(x * y for x, y in zip(one, other, strict=True)) / math.sqrt(free) if free else 0.0
    assert tau_b(scores, lengths) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scores", "lengths", "share", "said"),
    [
        ([], [], 0.2, "found no scores"),
        ([1.0], [1, 2], 0.2, "found 1 scores and 2 lengths"),
        ([math.nan], [1], 0.2, "no number"),
        ([1.0], [1], 0.0, "found a share of 0.0, expected more than 0"),
        ([1.0], [1], 1.5, "found a share of 1.5"),
        ([1.0], [1], math.nan, "found a share of nan"),
    ],
)
def test_what_cannot_be_measured_is_one_line(scores, lengths, share, said):
    with pytest.raises(MeasureError, match=said):
        recall(scores, lengths, share)


def order_by_draws(old, new, examples, seed):
    """What 200 draws of the prompts say, each measured by `recall` itself."""
    prompts = list(dict.fromkeys(example.prompt for example in examples))
    drawn, gains = random.Random(seed), []
    for _ in range(200):
        rows = [at for each in drawn.choices(prompts, k=len(prompts)) for at in _places(examples, each)]
        lengths = [length for at in rows for length in examples[at].lengths]
        before, after = (
            recall([scores[at] for at in rows for _ in examples[at].lengths], lengths, 0.2) for scores in (old, new)
        )
        gains.append(after - before)
    return sum(gain > 1e-9 for gain in gains) / 200, sum(gain < -1e-9 for gain in gains) / 200


def _places(examples, prompt):
    return [at for at, example in enumerate(examples) if example.prompt == prompt]


def drawn_orders(seed, prompts, noise, samples=4):
    """Examples whose prompts have lengths of their own, and an order of them for each noise on their logarithm."""
    drawn = random.Random(seed)
    means = [drawn.gauss(4, 0.6) for _ in range(prompts)]
    examples = [
        Example(f"{at}", tuple(max(1, round(math.exp(drawn.gauss(mean, 0.4)))) for _ in range(samples)))
        for at, mean in enumerate(means)
    ]
    return examples, *[[mean + size * drawn.gauss(0, 1) for mean in means] for size in noise]


@pytest.mark.parametrize("seed", range(12))
def test_two_orders_are_compared_as_draws_of_the_prompts_say(seed):
    examples, old, new = drawn_orders(seed, 6 + 5 * seed, (0.2, 1.0) if seed % 2 else (1.5, 0.1))
    examples += [Example(examples[0].prompt, (7,), version=1)]  # a prompt comes again as a whole
    old, new = [*old, old[0]], [*new, new[0]]
    found = compare_orders(old, new, examples, seed)
    assert found == order_by_draws(old, new, examples, seed)
    assert compare_orders(new, old, examples, seed) == found[::-1]
    assert compare_orders(old, [3 * math.atan(score) for score in old], examples, seed) == (0, 0)


def test_a_better_order_is_told_from_chance_by_enough_prompts_and_chance_is_not_called_better():
    told = {
        (prompts, noise): [compare_orders(old, new, examples) for examples, old, new in drawn]
        for prompts, noise in ((7, (0.1, 1.2)), (120, (0.1, 1.2)), (7, (0.6, 0.6)), (60, (0.6, 0.6)))
        for drawn in [[drawn_orders(seed, prompts, noise) for seed in range(10)]]
    }
    assert all(fewer >= 0.975 for _, fewer in told[120, (0.1, 1.2)])
    assert sum(fewer >= 0.975 for _, fewer in told[7, (0.1, 1.2)]) < 8, "of seven prompts one or two are in the tail"
    for prompts in (7, 60):
        assert sum(max(shares) >= 0.975 for shares in told[prompts, (0.6, 0.6)]) <= 1, "equally good: one in twenty"


@pytest.mark.parametrize("kind", [numpy.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("scores", "lengths"), [([1.0, 2.0, 3.0, 4.0], [4, 3, 1, 2]), ([1.0, 1.0, 2.0, 2.0], [1, 2, 3, 3])]
)
def test_scores_may_be_arrays(kind, scores, lengths):
    scores, lengths = kind(scores), kind(lengths)
    assert tau_b(scores, lengths) == tau_b(scores.tolist(), lengths.tolist())
    assert recall(scores, lengths, share=0.5) == recall(scores.tolist(), lengths.tolist(), share=0.5)


@pytest.mark.parametrize("method", [None, 5])
def test_a_method_that_is_none_is_one_line(method):
    with pytest.raises(UnknownMethodError, match=f"found {method} as method, expected a name or an object of a method"):
        LengthRanker.train([Example("a", (1,)), Example("b", (2,))], method=method)
