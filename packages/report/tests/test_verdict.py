"""What limits a run, with its error, and whether there is anything to learn."""

import random
import statistics
from itertools import pairwise
from types import SimpleNamespace

import pytest

from tailrace.contracts import Why
from tailrace.controller.members import REPLICA, TRAINER
from tailrace.report.figures.system import utilisation
from tailrace.report.figures.verdict import Signal, answers, limit, without_signal
from tailrace.report.fold.timeline import Doing, Span
from tailrace.report.reason_words import WAITS


def run_of(trainer, replica, cause="no complete batch", steps=5):
    """Steps of 10 s in which trainer and replica work for these shares, and wait for the rest."""
    spans = []
    for step in range(steps):
        begin = 10.0 * step
        for role, member, doing, busy in (
            (TRAINER, "0", Doing.TRAINING, trainer[step % len(trainer)]),
            (REPLICA, "r0", Doing.GENERATING, replica[step % len(replica)]),
        ):
            middle = begin + 10 * busy
            spans.append(Span(role, member, doing, begin, middle, ""))
            if busy < 1:
                idle = Doing.WAITING if role == TRAINER else Doing.IDLE
                spans.append(Span(role, member, idle, middle, begin + 10, cause))
    return spans, [10.0 * step for step in range(steps + 1)]


@pytest.mark.parametrize(
    ("trainer", "replica", "said", "change"),
    [
        (0.95, 0.4, "Training limits the speed; more replicas will not help", "take replicas away"),
        (0.3, 0.95, "Generation limits the speed", "Add replicas"),
        (0.95, 0.95, "Training and generation limit the speed alike", "Give trainer and replicas more devices"),
        (0.86, 0.99, "Training and generation limit the speed alike", "either of them alone"),
    ],
)
def test_who_is_busy_limits(trainer, replica, said, change):
    found = limit(*run_of([trainer], [replica]))
    assert found.said.startswith(said)
    assert change in found.change


@pytest.mark.parametrize("why", [Why.NOT_ADMITTED, Why.SCORING, Why.IN_ENVIRONMENTS, Why.HELD_FOR_LATER, Why.NOT_TOLD])
def test_where_nobody_is_busy_the_longest_wait_does(why):
    found = limit(*run_of([0.5], [0.4], WAITS[why]))
    assert found.cause == WAITS[why]
    assert WAITS[why] in found.said
    assert found.change != limit(*run_of([0.5], [0.4], "something else")).change


def test_errors_are_those_of_the_mean_over_steps():
    drawn = random.Random(7)
    shares = [drawn.uniform(0.2, 0.7) for _ in range(9)]
    found = limit(*run_of(shares, [0.95], steps=9))
    assert found.trainer.value == pytest.approx(statistics.mean(shares))
    assert found.trainer.error == pytest.approx(statistics.stdev(shares) / 3)
    assert (found.replicas.error, found.trainer.steps) == (pytest.approx(0, abs=1e-9), 9)
    assert f"{100 * statistics.mean(shares):.1f} ± {100 * found.trainer.error:.1f} %" in found.said


def test_a_span_counts_for_each_step_that_it_has_a_part_of():
    """The reference looks at every span for every step."""
    drawn = random.Random(3)
    ends = [10.0 * step for step in range(9)]
    cuts = sorted([0.0, 80.0, 20.0, 50.0, *(drawn.uniform(0, 80) for _ in range(20))])  # some at the end of a step
    kinds = (Doing.TRAINING, Doing.WAITING)
    spans = [Span(TRAINER, "0", kinds[place % 2], *pair, "") for place, pair in enumerate(pairwise(cuts))]
    spans.append(Span(REPLICA, "r0", Doing.GENERATING, 0.0, 80.0, ""))
    busy = [{row.role: row for row in utilisation(spans, *pair)}[TRAINER].busy for pair in pairwise(ends)]
    found = limit(spans, ends).trainer
    assert (found.value, found.steps) == (pytest.approx(statistics.mean(busy)), 8)
    assert found.error == pytest.approx(statistics.stdev(busy) / 8**0.5)


def test_only_the_last_steps_count():
    spans, ends = run_of([0.95] * 32 + [0.1] * 32, [0.95], steps=64)
    assert limit(spans, ends).trainer.value == pytest.approx(0.1)


@pytest.mark.parametrize("ends", [[], [3.0]])
def test_before_two_steps_nothing_is_known(ends):
    assert limit([], ends).said == "Not known yet: it takes 2 steps to tell."


def test_steps_without_spans_are_not_known():
    assert limit([], [0.0, 1.0]).said.startswith("Not known: the log has no trainer")


def batch(*groups, cut=0.0):
    members = [
        SimpleNamespace(prompt=prompt, reward=reward, truncated=number < cut * len(rewards))
        for prompt, rewards in enumerate(groups)
        for number, reward in enumerate(rewards)
    ]
    return Signal.of(members)


def test_a_batch_is_counted_by_its_groups():
    found = batch([0, 0], [1, 0], [1, 1], [0.5], [None, 1])
    assert (found.groups, found.equal) == (3, 2)
    assert found.reward == pytest.approx(4.5 / 8)


@pytest.mark.parametrize(
    ("signal", "said"),
    [
        (batch(*[[0, 0]] * 10, cut=0.9), "raise rollout.max_tokens"),
        (batch(*[[0, 0]] * 10), "easier prompts"),
        (batch(*[[1, 1]] * 10), "harder prompts"),
    ],
)
def test_nothing_to_learn_from_is_said_with_what_to_change(signal, said):
    found = without_signal({1: signal})
    assert found.startswith("10 of the last 10 groups had the same reward for each response")
    assert said in found


@pytest.mark.parametrize("signals", [[], [batch(*[[0, 0]] * 7)], [batch(*[[0, 0]] * 8, *[[0, 1]] * 2)]])
def test_too_few_or_enough_signal_say_nothing(signals):
    assert without_signal(dict(enumerate(signals))) == ""


def test_only_the_last_batches_are_looked_at_for_a_signal():
    dull, lively = batch(*[[0, 0]] * 10), batch(*[[0, 1]] * 10)
    assert without_signal({version: dull if version > 4 else lively for version in range(1, 9)})
    assert without_signal({version: lively if version > 4 else dull for version in range(1, 9)}) == ""


def test_three_questions_are_answered_and_what_is_wrong_comes_before_the_speed():
    spans, ends = run_of([0.95] * 8, [0.5], steps=8)
    found = limit(spans, ends)
    assert answers("Yes.", found) == [
        ("Was it good?", "Yes."), ("What limits its speed?", found.said), ("What to change?", found.change),
    ]  # fmt: skip
    assert answers("Yes.", found, "It is on fire.")[2][1] == "See to this first: It is on fire."
    assert answers("Yes.", limit([], []))[2][1] == "Nothing that is known."
