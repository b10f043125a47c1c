"""Figures of the ranker in a summary: over all that was trained on, with predictions as they stood before."""

import random
from types import SimpleNamespace

import pytest

from tailrace.controller.lengths import Outcome
from tailrace.pipeline.run.figures.summary import NO_RANKER, prompt_characters, ranker_figures
from tailrace.ranker import recall

OUTCOMES = [
    Outcome(prompt, None if prompt % 5 == 0 else 100.0 + (prompt * 37) % 50, (prompt % 7, 3 * prompt % 11))
    for prompt in range(2_500)
]


def a_run(outcomes):
    return SimpleNamespace(
        prediction_outcomes=outcomes, ranker_updates=3, counts=SimpleNamespace(unpredicted=2 * len(outcomes) // 5)
    )


def ceiling_of(outcomes):
    """One of two responses of each group, by lot, is ranked by the other; the mean of many lots."""
    drawn, found = random.Random(1), []
    for _ in range(20):
        pairs = [sorted(outcome.lengths, key=lambda _: drawn.random()) for outcome in outcomes]
        known, asked = zip(*[(max(1, one), max(1, other)) for one, other in pairs], strict=True)
        found.append(recall(known, asked, 0.2))
    return sum(found) / len(found)


def text_of(prompt):
    return "a" * (prompt % 13 + 1)


def test_recall_is_over_all_that_was_trained_on():
    run, asked = a_run(OUTCOMES), []

    def texts(prompts):
        asked.append(len(prompts))
        return [text_of(prompt) for prompt in prompts]

    characters = prompt_characters(run, texts)
    assert asked == [1_000, 1_000, 500]
    assert characters == {prompt: len(text_of(prompt)) for prompt in range(2_500)}
    lengths = [length for outcome in OUTCOMES for length in outcome.lengths]
    scores = [outcome.predicted or 0.0 for outcome in OUTCOMES for _ in outcome.lengths]
    sizes = [len(text_of(outcome.prompt)) for outcome in OUTCOMES for _ in outcome.lengths]
    assert ranker_figures(run, characters) == {
        "ranker_recall20": pytest.approx(recall(scores, lengths, 0.2), abs=1e-4),
        "prompt_length_recall20": pytest.approx(recall(sizes, lengths, 0.2), abs=1e-4),
        "ranker_ceiling20": pytest.approx(ceiling_of(OUTCOMES), abs=0.02),
        "ranker_updates": 3,
        "unpredicted": 1_000,
    }


def test_each_ranker_is_measured_by_itself():
    """The second one predicts a hundred times as much: in one order with the first, it alone would be right."""
    first = [Outcome(prompt, float(prompt), (10 * prompt, 10 * prompt)) for prompt in range(100)]
    second = [Outcome(100 + prompt, 100.0 * prompt, (prompt, prompt), 1) for prompt in range(50)]
    alone = [ranker_figures(a_run(outcomes), None)["ranker_recall20"] for outcomes in (first, second)]
    assert alone == [1.0, 1.0]
    assert ranker_figures(a_run([*first, *second]), None)["ranker_recall20"] == 1.0
    bad = [Outcome(each.prompt, -each.predicted, each.lengths, 1) for each in second]
    assert ranker_figures(a_run([*first, *bad]), None)["ranker_recall20"] == pytest.approx(2 / 3, abs=1e-3)


def test_a_ranker_that_predicted_nothing_has_no_recall_beside_what_could_be_found():
    late = ranker_figures(a_run([Outcome(each.prompt, None, each.lengths) for each in OUTCOMES]), None)
    assert late["ranker_recall20"] is None, "0.2 would be what chance finds"
    assert late["ranker_ceiling20"] is not None


def test_without_texts_or_without_anything_trained_there_is_no_figure():
    assert ranker_figures(a_run(OUTCOMES), None)["prompt_length_recall20"] is None
    empty = ranker_figures(a_run([]), {})
    assert (empty["ranker_recall20"], empty["prompt_length_recall20"]) == (None, None)
    assert empty["ranker_ceiling20"] is None
    assert set(NO_RANKER) == set(empty)
    assert prompt_characters(a_run([]), lambda _: pytest.fail("nobody is asked")) == {}
