"""Whether lengths were predicted ahead of the launches, on logs worked out by hand."""

import pytest

from tailrace import contracts as c
from tailrace.pipeline.run.figures.predictions import PredictionFigures


def figures(*instants):
    found = PredictionFigures()
    for now, *happened in instants:
        events = [one for one in happened if isinstance(one, c.Event)]
        found.observe(now, events, [one for one in happened if not isinstance(one, c.Event)])
    return found.plain()


def ask(*prompts):
    return c.Predict(1, prompts)


def answer(prompt):
    return c.Predicted(prompt, 100.0, 1)


def launch(group, prompt, samples=(0, 1), purpose=c.Purpose.TRAIN):
    refs = [c.TrajectoryRef(f"{group}.{sample}", group, 0, purpose, prompt=prompt) for sample in samples]
    return c.Route(2, "r0", tuple(refs))


def test_a_launch_counts_once_with_the_seconds_since_its_first_prediction():
    found = figures(
        (0.0, ask(7, 8, 9)),
        (1.0, answer(7), answer(8)),
        (3.0, answer(7)),  # by a ranker that has learned anew
        (4.0, c.Tick(), launch(0, 7, samples=(0,))),
        (5.0, c.Tick(), launch(0, 7, samples=(1,)), launch(1, 8)),
        (6.0, c.Tick(), launch(2, 9)),  # nobody waits for the answer
        (7.0, answer(9)),
        (8.0, c.Tick(), launch(3, 2, purpose=c.Purpose.EVAL)),
        (9.0, c.Tick(), launch(2, 9)),  # after a kill
    )
    assert found == {
        "unpredicted_share": pytest.approx(1 / 3, abs=1e-4),
        "predicted_ahead_s": 3.5,
        "waited_for_predictions_s": 0.0,
    }


@pytest.mark.parametrize(
    ("others", "waited_s"),
    [((), 5.0), ((c.Activity("ranker", "0", "updated", 1),), 5.0), ((c.Tick(),), 0.0), ((c.Pulled("r0", 1, 3),), 0.0)],
)
def test_a_launch_has_waited_if_nothing_came_but_its_prediction(others, waited_s):
    found = figures((2.0, ask(7, 8)), (7.0, answer(7), *others, launch(0, 7)))
    assert found["waited_for_predictions_s"] == waited_s
    assert found["predicted_ahead_s"] == 0.0


def test_without_a_ranker_there_is_nothing_to_tell():
    assert set(figures((1.0, c.Tick(), launch(0, 7))).values()) == {None}


def test_a_ranker_that_never_answers_leaves_all_launches_without_one():
    found = figures((0.0, ask(7)), (1.0, c.PredictionFailed(7, "found nothing", 1)), (2.0, c.Tick(), launch(0, 7)))
    assert found == {"unpredicted_share": 1.0, "predicted_ahead_s": None, "waited_for_predictions_s": 0.0}
