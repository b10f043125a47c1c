"""A ranker that errs by a known measure: the recalls that it has, what it leaves as it is, and what no ranker can be."""

import random
from statistics import fmean

import pytest

from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.noisy_oracle import TABLE_4, expected_recalls, mistaken_for, noise_of, noisy_oracle
from tailrace.ranker import recall

COUNT, BATCHES = 600, 12


def lengths_of(seed, count=COUNT):
    draw = random.Random(seed)
    return [draw.lognormvariate(7.0, 1.0) for _ in range(count)]


@pytest.mark.parametrize(
    "recalls", [*TABLE_4.values(), {0.2: 0.6}, {0.2: 0.52, 0.1: 0.43, 0.05: 0.33}, {0.3: 0.9, 0.01: 0.8}], ids=str
)
@pytest.mark.cases(2)
def test_so_many_of_the_longest_are_found(recalls):
    found = {share: [] for share in recalls}
    for seed in range(BATCHES):
        lengths = lengths_of(seed)
        predicted = noisy_oracle(lengths, recalls, f"of {seed}")
        assert sorted(predicted) == sorted(lengths)
        for share in recalls:
            found[share].append(recall(predicted, [round(1000 * length) for length in lengths], share))
    expected = expected_recalls(noise_of(recalls), recalls)
    for share, wanted in recalls.items():
        assert expected[share] == pytest.approx(wanted, abs=0.03), share
        error = (0.25 / (share * COUNT * BATCHES)) ** 0.5
        assert fmean(found[share]) == pytest.approx(expected[share], abs=4 * error + 0.01), share


def test_the_papers_three_recalls_fit_one_noise():
    for recalls in TABLE_4.values():
        assert expected_recalls(noise_of(recalls), recalls) == pytest.approx(recalls, abs=0.006)


def test_an_oracle_errs_nowhere_and_at_chance_nothing_is_known():
    lengths = lengths_of(0)
    assert noisy_oracle(lengths, {0.2: 1.0}, 0) == pytest.approx(lengths, rel=0.05)
    blind = [
        recall(noisy_oracle(lengths, {0.2: 0.2}, seed), [round(length) for length in lengths], 0.2)
        for seed in range(12)
    ]
    assert fmean(blind) == pytest.approx(0.2, abs=0.05)


def test_the_same_seed_errs_for_the_same_ones_and_more_where_less_is_found():
    lengths = lengths_of(1)
    assert mistaken_for(lengths, noise_of({0.2: 0.7}), 3) == mistaken_for(lengths, noise_of({0.2: 0.7}), 3)
    assert mistaken_for(lengths, noise_of({0.2: 0.7}), 3) != mistaken_for(lengths, noise_of({0.2: 0.7}), 4)
    ranked = sorted(lengths)

    def off(recalls):
        places = zip(lengths, noisy_oracle(lengths, recalls, 3), strict=True)
        return fmean(abs(ranked.index(true) - ranked.index(said)) for true, said in places)

    assert off({0.2: 0.9}) < off({0.2: 0.7}) < off({0.2: 0.4})


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_of_a_few_each_has_one(count):
    lengths = lengths_of(2, count)
    assert sorted(noisy_oracle(lengths, TABLE_4["Qwen2.5-7B"], 0)) == sorted(lengths)


@pytest.mark.parametrize(
    ("recalls", "message"),
    [
        ({}, "found no recall"),
        ({1.0: 1.0}, "found a recall of a tail of 1.0, expected a share above 0 and below 1"),
        ({0.2: 1.01}, r"found a recall of 1.01 of the longest 20%, expected 0.2 \(chance\) to 1"),
        ({0.2: 0.1}, r"found a recall of 0.1 of the longest 20%"),
        ({0.2: 0.9, 0.05: 0.1}, r"expected some that one ranker can have, of which the nearest are"),
    ],
)
def test_what_no_ranker_has_is_one_line(recalls, message):
    with pytest.raises(FleetError, match=message) as raised:
        noisy_oracle([1.0, 2.0], recalls, 0)
    assert len(str(raised.value).splitlines()) == 1
