"""Accuracy is said only where it is known, each quantity has its own error, and baselines are called what they are."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.controller.evaluations import EvaluationResult
from tailrace.pipeline.run.figures.batches import standard_error
from tailrace.pipeline.run.figures.results import MeasuredAnswers, Quantity, Results, results_of

ACCURACY, REWARD = Quantity.ACCURACY, Quantity.REWARD


def evaluation(rewards, correct=None, *, version=0, mode="sampled", step=0, failed=0):
    found = EvaluationResult(version, mode, step, float(step), failed=failed)
    for reward, right in zip(rewards, correct or [None] * len(rewards), strict=True):
        found.answered(7, reward, right)
    return found


@pytest.mark.parametrize(
    ("rewards", "correct", "shown", "accuracy"),
    [
        ([0.0, 1.0, 1.0], None, (ACCURACY,), 2 / 3),
        ([0.0, 1.0, 1.0], [False, True, True], (ACCURACY,), 2 / 3),
        ([0.1 + 0.2 - 0.3, sum([0.1] * 10)], None, (ACCURACY,), 0.5),  # 0 and 1 but for rounding
        ([0.2, 1.0], [False, True], (ACCURACY, REWARD), 0.5),
        ([0.2, 1.0], [False, None], (ACCURACY, REWARD), 0.5),  # a reward of 1 says so itself
        ([0.0, 1.0], [True, True], (ACCURACY, REWARD), 1.0),  # what the verifier says stands above its reward
        ([0.2, 1.0], None, (REWARD,), None),
        ([0.2, 1.0], [None, True], (REWARD,), None),
        ([-1.0, 1.0], None, (REWARD,), None),
    ],
)
def test_accuracy_is_said_where_it_is_known(rewards, correct, shown, accuracy):
    found = results_of([evaluation(rewards, correct)], baseline="warm start")
    assert found.quantities == shown
    assert found.before.reward.value == pytest.approx(statistics.fmean(rewards))
    assert (found.before.accuracy and found.before.accuracy.value) == accuracy


def test_one_evaluation_with_graded_rewards_takes_accuracy_from_all():
    """Before training nothing earned anything, so each answer could have been right or wrong; later rewards are graded."""
    found = results_of(
        [evaluation([0.0, 0.0]), evaluation([0.2, 0.0], version=5, step=5)],
        [evaluation([0.0, 0.0], version=6)],
        baseline="warm start",
    )
    assert found.quantities == (REWARD,)
    assert {one.accuracy for one in (*found.curve, *found.listed)} == {None}
    with pytest.raises(LookupError, match="accuracy of 'after RL, sampled' is not known"):
        found.after.estimate(ACCURACY)


def test_each_quantity_has_its_own_error():
    found = MeasuredAnswers.of("x", evaluation([0.2, 0.2, 1.0, 0.0], [False, False, True, False]))
    assert found.accuracy.error == pytest.approx(math.sqrt(0.25 * 0.75 / 4))
    assert found.reward.error == pytest.approx(statistics.stdev([0.2, 0.2, 1.0, 0.0]) / 2)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=20), st.integers(1, 4))
def test_the_error_of_samples_that_share_a_prompt_is_that_of_their_prompts(values, samples):
    """Samples of a prompt that all earn the same say no more than one of them."""
    alone = standard_error(values)
    assert alone == pytest.approx(statistics.stdev(values) / math.sqrt(len(values)), abs=1e-9)
    repeated = [value for value in values for _ in range(samples)]
    prompts = [prompt for prompt in range(len(values)) for _ in range(samples)]
    assert standard_error(repeated, prompts) == pytest.approx(alone, abs=1e-9)


@pytest.mark.parametrize("value", [0.2, 0.1, 1 / 3, 1e6 / 7])
def test_values_that_are_all_the_same_have_no_error(value):
    for count in range(1, 50):
        assert standard_error([value] * count) == 0.0


def test_one_value_has_no_error():
    assert standard_error([]) == standard_error([3.0]) == standard_error([1.0, 2.0], ["p", "p"]) == 0.0


@pytest.mark.parametrize("baseline", ["warm start", "model as given"])
def test_baselines_are_called_what_they_are(baseline):
    right, wrong = [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]
    evaluations = [
        evaluation(right),
        evaluation(wrong, mode="greedy"),
        evaluation(wrong, mode="forced"),
        evaluation(right, version=4, step=3),
        evaluation(right, version=4, step=3, mode="greedy"),
    ]
    found = results_of(evaluations, [evaluation(wrong, mode="sampled", version=5)], baseline=baseline)
    names = [f"{baseline}, greedy", "worked style forced, sampled", "continued fine-tuning, sampled"]
    assert [control.name for control in found.controls] == names
    assert found.best_control.name == f"{baseline}, sampled"
    assert (found.before.step, found.after.step, found.after_greedy.name) == (0, 3, "after RL, greedy")
    assert [measured.step for measured in found.curve] == [0, 3]


def test_what_could_not_be_scored_counts_neither_way():
    found = results_of([evaluation([1.0, 0.0], failed=2), evaluation([], version=3, step=3, failed=4)], baseline="x")
    assert (found.unscored, found.before.problems, found.before.accuracy.value, found.after) == (6, 2, 0.5, None)
    assert results_of([], baseline="x") == Results("x")
    assert Results("x").quantities == ()


def test_each_source_has_its_own_mean():
    """Problems of both sources come in any order; the whole is their mean, weighted by their numbers."""
    result = EvaluationResult(0, "sampled")
    for source, reward in (("sums", 1.0), ("programs", 0.0), ("sums", 0.0), ("sums", 1.0)):
        result.answered(5 if source == "sums" else 50, reward, None, source)
    found = results_of([result], baseline="warm start")
    parts = found.before.sources
    assert found.sources == ("sums", "programs")
    assert {name: (part.accuracy.value, part.problems, part.length_p50) for name, part in parts.items()} == {
        "sums": (pytest.approx(2 / 3), 3, 5.0),
        "programs": (0.0, 1, 50.0),
    }
    assert sum(part.accuracy.value * part.problems for part in parts.values()) / 4 == found.before.accuracy.value
    assert Results.from_plain(found.plain()).before == found.before


def test_one_source_is_not_told_apart():
    assert results_of([evaluation([0.0, 1.0])], baseline="warm start").sources == ()
