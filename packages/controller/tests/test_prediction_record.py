"""What was predicted, beside how long it became; at chance recall routing does without predictions."""

import math
import random
from statistics import fmean, pstdev
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.contracts import Why
from tailrace.controller.controller import Controller
from tailrace.controller.lengths import Outcome, PredictionRecord, measured_recall, recall_of

COST = {"k1": 0.0, "k2": 0.0, "k3": 4e-4, "k4": 0.01}
GROUPS = 16  # of a batch


def length(prompt):
    """Two of ten prompts are ten times as long; no two are alike."""
    return (5_000 if prompt % 10 in (1, 5) else 500) + prompt


def nonsense(prompt):
    """A prediction that has nothing to do with the length."""
    return float(random.Random(f"nonsense {prompt}").randint(1, 9_000))


def run_of(predicted, steps=8, **changes):
    """A run with a ranker that predicts this of each prompt, and what became of it."""
    run = Scripted(
        spec(
            **{
                "routing": policy("routing", "skew-aware", **COST),
                "provisioning": policy("provisioning", "static", count=3),
                "batch_groups": GROUPS,
                "replica_batch": 256,
                "buffer_groups": 2 * GROUPS,
                "steps": steps,
                "ranker": True,
            }
            | changes
        )
    )
    run.lengths = {prompt: tokens for prompt in range(1_000) if (tokens := predicted(prompt)) is not None}
    run.tokens = lambda ref: length(ref.prompt)
    return run


def to_the_end(run):
    run.go(c.Tick())
    for _ in range(50):
        run.later(1.0)
    assert run.view.finished, run.view.failure
    return run


def reasons(run):
    """Why each group was placed where it was, in order."""
    return [route.reason(0).why for route in of(c.Route, run.given)]


def replayed(run):
    controller = Controller(run.controller.spec)
    for now, events, commands in run.calls:
        assert controller.handle_all(events, now) == commands
    assert controller.state() == run.controller.state()


# ---- the measure ------------------------------------------------------------------------------------------------------


def outcomes(predicted, count=128, samples=4):
    return [Outcome(prompt, predicted(prompt), (length(prompt),) * samples) for prompt in range(count)]


def test_nothing_is_said_of_a_few_groups():
    assert measured_recall(outcomes(length, 31)) is None
    assert measured_recall(outcomes(length, 32)).groups == 32


def test_right_predictions_are_no_chance_and_those_that_are_all_alike_are():
    assert measured_recall(outcomes(length)).recall > 0.99  # four of a group are tied at the cut
    assert not measured_recall(outcomes(length)).by_chance
    alike = measured_recall(outcomes(lambda _: 700.0))
    assert alike.recall == pytest.approx(math.ceil(0.2 * 512) / 512)
    assert alike.by_chance


@pytest.mark.parametrize("count", [32, 128])
@pytest.mark.parametrize("seed", range(3))
def test_predictions_without_a_meaning_are_chance_but_for_a_few_in_a_hundred(count, seed):
    draw, trials = random.Random(seed), 300
    found = []
    for _ in range(trials):
        shuffled = list(range(count))
        draw.shuffle(shuffled)
        found.append(measured_recall(outcomes(lambda prompt, of=shuffled: float(of[prompt]), count)))
    recalls = [each.recall for each in found]
    assert fmean(recalls) == pytest.approx(0.2, abs=0.03), f"seed {seed}"
    # As `measured_recall` says it: two standard deviations above the mean.
    assert pstdev(recalls) == pytest.approx((found[0].chance - 0.2) / 2, rel=0.25), f"seed {seed}"
    assert sum(each.by_chance for each in found) / trials > 0.9, f"seed {seed}"


def test_what_has_no_prediction_stands_below_what_has():
    known = [Outcome(prompt, None, (100,)) for prompt in range(8)]
    assert recall_of((None, each) for each in known) == 2 / 8  # whichever
    longest = [*known, Outcome(8, 5.0, (900,)), Outcome(9, 4.0, (800,))]
    assert recall_of((each.predicted, each) for each in longest) == 1.0
    assert recall_of(()) is None


# ---- what the controller makes of it -----------------------------------------------------------------------------------


def test_predictions_that_find_the_longest_are_used_to_the_end():
    run = to_the_end(run_of(lambda prompt: float(length(prompt))))
    assert run.controller.ledger.predictions.record.recall.recall == 1.0
    assert Why.LONG_TAIL in reasons(run)
    assert Why.CHANCE not in reasons(run)
    replayed(run)


def test_predictions_without_a_meaning_are_used_until_that_is_known_and_then_it_is_the_reason():
    run = to_the_end(run_of(nonsense))
    given = reasons(run)
    first = given.index(Why.CHANCE)
    assert {Why.LONG_TAIL, Why.REGULAR} >= set(given[:first]) - {Why.DRY}
    assert set(given[first:]) == {Why.CHANCE}
    reason = next(route.reason(0) for route in of(c.Route, run.given) if route.reason(0).why is Why.CHANCE)
    assert 0 <= reason.numbers["recall"] <= reason.numbers["chance"] < 1
    replayed(run)


def test_they_are_used_again_once_they_find_the_longest():
    run = run_of(lambda prompt: nonsense(prompt) if prompt < 5 * GROUPS else float(length(prompt)), steps=24)
    to_the_end(run)
    given = reasons(run)
    last = len(given) - 1 - given[::-1].index(Why.CHANCE)
    assert 0 < last < len(given) - 1
    assert Why.LONG_TAIL in given[last:]
    replayed(run)


def test_the_record_has_what_was_predicted_when_a_group_started_and_not_what_was_said_later():
    run = run_of(lambda prompt: None if prompt % 4 == 0 else float(length(prompt)), steps=2)
    run.go(c.Tick(), leave=(c.Score,))
    run.go(*(c.Predicted(prompt, 1.0) for prompt in range(2 * GROUPS)), leave=(c.Score,))
    run.catch_up()
    to_the_end(run)
    found = run.view.prediction_outcomes
    assert len(found) == 2 * GROUPS
    for each in found:
        assert each.lengths == (length(each.prompt),) * 2
        assert each.predicted == (None if each.prompt % 4 == 0 else length(each.prompt))
    assert run.view.counts.unpredicted == 2 * sum(each.predicted is None for each in found)


def test_a_batch_that_a_crash_undid_counts_once():
    run = run_of(lambda prompt: float(length(prompt)), steps=4)
    run.go(c.Tick(), leave=(c.Checkpoint,))
    made = run.view.version
    assert made > 0
    assert len(run.view.prediction_outcomes) == made * GROUPS
    run.left.clear()
    run.down("trainer")
    to_the_end(run)
    prompts = [each.prompt for each in run.view.prediction_outcomes]
    assert sorted(prompts) == list(range(4 * GROUPS))
    replayed(run)


def test_without_a_ranker_nothing_is_kept():
    run = to_the_end(run_of(lambda _: None, ranker=False))
    assert run.view.prediction_outcomes == []
    assert run.controller.ledger.predictions.record.ended == 0


def test_recall_is_measured_after_every_sixteen_groups_on_the_last_128():
    record = PredictionRecord()
    for count in range(1, 200):
        states = [SimpleNamespace(generated=length(count))] * 2
        group: Any = SimpleNamespace(prompt=count, predicted=float(length(count)), states=states, ranker=0)
        record.completed(group)
        assert record.ended == count
        measured = None if record.recall is None else record.recall.groups
        assert measured == (None if count < 32 else min(128, count - count % 16)), count


def test_what_an_earlier_ranker_predicted_is_not_measured_with_what_a_later_one_does():
    """It predicted ten times as much: in one order, what the later one finds would be chance."""
    record = PredictionRecord()
    for count in range(1, 161):
        ranker = int(count > 96)
        states = [SimpleNamespace(generated=length(count))] * 2
        predicted = float(random.Random(count).randint(50_000, 90_000)) if ranker == 0 else float(length(count))
        record.completed(SimpleNamespace(prompt=count, predicted=predicted, states=states, ranker=ranker))  # type: ignore[arg-type]
        if count == 96:
            assert record.recall.by_chance
        if 112 <= count < 128:
            assert record.recall is None, "of the later one there are too few"
    assert record.recall.groups == 64
    assert record.recall.recall > 0.99


def test_a_group_says_which_ranker_predicted_it():
    run = run_of(lambda prompt: float(length(prompt)), steps=4)
    run.go(c.Tick(), leave=(c.Score,))
    before = {group.index for group in run.controller.ledger.groups.values() if group.version is not None}
    run.go(c.Activity("ranker", "0", "updated"), leave=(c.Score,))
    run.catch_up()
    to_the_end(run)
    outcomes = run.view.prediction_outcomes
    assert {each.ranker for each in outcomes} == {0, 1}
    assert [each.ranker for each in outcomes if each.prompt in before] == [0] * len(before)
    replayed(run)
