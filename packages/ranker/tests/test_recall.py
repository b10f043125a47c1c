"""Recall and tau-b against their definitions, written out."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.ranker import MeasureError, recall, tau_b
from tailrace.ranker.recall import tail_count

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
