"""Evaluations: when each is due, who answers it, what is counted, and that a run ends after its last one."""

from types import SimpleNamespace

import pytest
from scripted import Scripted, spec

from tailrace import contracts as c
from tailrace.controller.evaluations import EvaluationResult, Evaluations
from tailrace.controller.spec import EvaluationPlan

LAST = 6


def evaluations(**plan):
    return Evaluations(EvaluationPlan(**{"size": 2, "modes": ("greedy",), **plan}))


def due(found, steps=range(LAST + 1)):
    for step in steps:
        found.at(10 + step, step, LAST)
    return found.due


def score(found, trajectory, reward=1.0, correct=None, tokens=7, now=3.0, event=None, steps=4):
    trajectory.tokens = tokens
    event = event or c.Scored(trajectory.id, reward, correct=correct)
    trainer = SimpleNamespace(batches={11: 1}, step=steps)
    return found.scored(trajectory, event, trainer, now)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({}, [(10, "greedy"), (16, "greedy")]),
        ({"every": 2}, [(10, "greedy"), (12, "greedy"), (14, "greedy"), (16, "greedy")]),
        ({"first": ("sampled",)}, [(10, "greedy"), (10, "sampled"), (16, "greedy")]),
        ({"last": ("sampled", "greedy")}, [(10, "greedy"), (16, "greedy"), (16, "sampled")]),
        ({"size": 0}, []),
    ],
)
def test_they_are_due_at_both_ends_and_every_so_many_steps(plan, expected):
    assert due(evaluations(**plan)) == expected


def test_one_that_is_due_running_or_done_is_not_due_again():
    found = evaluations(modes=("greedy", "sampled"))
    due(found, [0, 0])
    assert found.due == [(10, "greedy"), (10, "sampled")]
    running = found.start(10)
    assert not found.idle
    due(found, [0])
    assert found.due == [(10, "sampled")]
    for trajectory in running:
        score(found, trajectory)
    assert not found.idle
    due(found, [0])
    assert found.due == [(10, "sampled")]
    found.due.clear()
    assert found.idle


def test_the_next_that_a_version_can_answer_starts():
    found = evaluations(every=1)
    due(found, [0, 1, 2])
    assert found.start(9) == []
    found.due.reverse()  # a run that fell back may have a newer one first
    first = found.start(11)
    assert [(one.id, one.group, one.prompt) for one in first] == [("e11.greedy.0", 0, 0), ("e11.greedy.1", 1, 1)]
    assert {(one.sample, one.purpose, one.mode) for one in first} == {(0, c.Purpose.EVAL, "greedy")}
    assert found.due == [(12, "greedy"), (10, "greedy")]
    assert not found.idle


def test_a_result_has_every_answer_and_names_the_version_that_gave_it():
    found = evaluations(size=3)
    due(found, [0])
    first, second, third = found.start(10)
    assert list(score(found, first, 1.0, tokens=5)) == []
    assert list(score(found, first)) == []  # a second time
    second.version = 11
    assert list(score(found, second, 0.25, correct=True, tokens=6)) == []
    assert (found.results, found.idle) == ([], False)
    failed = c.ScoringFailed(third.id, "the verifier broke")
    assert list(score(found, third, event=failed, now=8.0)) == [first.id, second.id, third.id]
    assert found.idle
    (result,) = found.results
    assert (result.version, result.mode, result.step, result.at_s, result.failed) == (11, "greedy", 1, 8.0, 1)
    assert (result.rewards, result.correct, result.tokens) == ([1.0, 0.25], [True, True], [5, 6])
    assert result.sources == ["", ""]
    assert list(score(found, third)) == []


def test_a_version_that_training_no_longer_knows_was_made_by_now():
    found = evaluations(size=1)
    due(found, [0])
    score(found, found.start(10)[0], steps=5)
    assert found.results[0].step == 5


@pytest.mark.parametrize(
    ("reward", "said", "expected"), [(1.0, None, True), (0.0, None, False), (0.5, None, None), (1.0, False, False)]
)
def test_a_reward_of_one_or_none_says_whether_it_is_right_unless_the_verifier_does(reward, said, expected):
    result = EvaluationResult(1, "greedy")
    result.answered(3, reward, said, "math")
    assert (result.correct, result.rewards, result.tokens, result.sources) == ([expected], [reward], [3], ["math"])


def test_a_run_ends_after_its_last_evaluation():
    run = Scripted(spec(evaluation=EvaluationPlan(size=1, modes=("greedy",))))
    answers, asked = run.answers, []

    def all_but_evaluations(command):
        if isinstance(command, c.Route) and command.trajectories[0].purpose is c.Purpose.EVAL:
            asked.append(command)
            return []
        return answers(command)

    run.answers = all_but_evaluations
    run.go(c.Tick())
    assert (run.view.step, run.view.counts.trained) == (3, 6)
    while asked:
        assert not run.view.finished
        run.go(*answers(asked.pop(0)))
    assert run.view.finished, run.view.failure
    assert [result.version for result in run.controller.evaluations.results] == [0, 3]
