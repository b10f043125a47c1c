"""Generated tasks: right, reproducible, disjoint splits, and a long tail."""

import itertools
import json
from collections import Counter
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.reward.errors import SettingsError, TooFewQuestionsError, UnknownTaskError
from tailrace.reward.tasks import get_task, split_of, write_jsonl

SEEDS = st.integers(0, 2**31)


@cache
def long_sums():
    return get_task("long-chain-sum")


def verified(row, response):
    from tailrace.reward.verifiers.gym import reasoning_gym_verifier

    return reasoning_gym_verifier(response, row["answer"], row["metadata"])


def lengths(task, misread, size=4000):
    rows = task.generate("train", size, 5)
    return sorted(len(response.split()) for _, response in task.demonstrations(rows, 5, misread))


@pytest.mark.parametrize("name", ["long-chain-sum", "short-chain-sum", "brief-chain-sum"])
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_careful_demonstrations_are_right_by_reasoning_gyms_own_scorer(name, seed):
    task = get_task(name)
    rows = task.generate("train", 60, seed)
    for row, (prompt, response) in zip(rows, task.demonstrations(rows, seed, misread=0.0), strict=True):
        assert prompt == row["prompt"]
        assert response.startswith(task.forced_prefix)
        assert verified(row, response) == 1.0


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, misread=st.floats(0, 1))
def test_a_demonstration_reads_every_term_and_computes_rightly_what_it_read(seed, misread):
    rows = long_sums().generate("train", 30, seed)
    for row, (_, response) in zip(rows, long_sums().demonstrations(rows, seed, misread), strict=True):
        first, *steps = response.split("</think>")[0].removeprefix("<think>").split(" = ")
        asked = row["metadata"]["entry"]["expression"].split()
        pieces = [first.split(), *(step.split() for step in steps)]
        assert [token for piece in pieces for token in piece[-1:]][:-1] == asked[2::2]
        for before, after in itertools.pairwise(pieces):
            assert str(eval(" ".join(before))) == after[0]
        assert f"<answer> {pieces[-1][0]}</answer>" in response
        for sign, piece in zip(asked[1::2], pieces, strict=False):
            assert piece[1] == sign or (sign, piece[1]) == ("-", "+")


def test_the_demonstrator_misreads_as_often_as_asked():
    rows = long_sums().generate("train", 4000, 3)
    responses = [response for _, response in long_sums().demonstrations(rows, 3, misread=0.65)]
    asked = sum(row["metadata"]["entry"]["expression"].count(" - ") for row in rows)
    kept = sum(response.count(" - ") for response in responses)
    assert 1 - kept / asked == pytest.approx(0.65, abs=0.02)
    right = sum(verified(row, response) for row, response in zip(rows, responses, strict=True)) / len(rows)
    assert 0.25 < right < 0.45


def test_the_long_task_has_a_long_tail_and_the_short_one_has_none():
    for misread in (0.0, 0.65):
        long = lengths(long_sums(), misread)
        assert long[int(0.99 * len(long))] >= 4 * long[len(long) // 2]
        short = lengths(get_task("short-chain-sum"), misread)
        assert short[-1] <= 1.5 * short[0]


@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, other=SEEDS)
def test_no_heldout_question_is_ever_trained_on(seed, other):
    heldout = {row["prompt"] for row in long_sums().generate("heldout", 256, seed)}
    assert len(heldout) == 256
    assert not heldout & {row["prompt"] for row in long_sums().generate("train", 500, other)}
    assert all(split_of(prompt) == "heldout" for prompt in heldout)


def test_the_seed_decides_everything():
    for split in ("train", "heldout"):
        assert long_sums().generate(split, 100, 1) == long_sums().generate(split, 200, 1)[:100]
        assert long_sums().generate(split, 100, 1) != long_sums().generate(split, 100, 2)
    rows = long_sums().generate("train", 100, 1)
    assert long_sums().demonstrations(rows, 1) == long_sums().demonstrations(rows, 1)
    assert long_sums().demonstrations(rows, 1) != long_sums().demonstrations(rows, 2)


def test_warm_start_demonstrations_are_of_training_questions_with_a_flatter_tail():
    demonstrations = long_sums().warm_start(3000, 1)
    assert demonstrations == long_sums().warm_start(4000, 1)[:3000]
    assert all(split_of(prompt) == "train" for prompt, _ in demonstrations)
    warm = sum(len(response.split()) for _, response in demonstrations) / 3000
    trained = sum(lengths(long_sums(), 0.0, 3000)) / 3000
    assert warm > 1.2 * trained


def test_most_questions_are_short():
    terms = Counter(row["metadata"]["entry"]["num_terms"] for row in long_sums().generate("train", 4000, 1))
    assert min(terms) == 3
    assert max(terms) > 18
    assert terms[3] == max(terms.values())


def test_more_heldout_questions_than_there_are_is_an_error():
    from tailrace.reward.tasks import ChainSum

    tiny = ChainSum("tiny", min_terms=2, max_terms=2, exponent=0.0, warm_exponent=0.0, misread=0.0)
    with pytest.raises(TooFewQuestionsError, match="distinct held-out questions of 'tiny', expected 1000"):
        tiny.generate("heldout", 1000, 1)


def test_wrong_requests_are_refused():
    from tailrace.reward.tasks import ChainSum

    with pytest.raises(UnknownTaskError, match="did you mean 'long-chain-sum'"):
        get_task("long-chainsum")
    with pytest.raises(ValueError, match="expected a probability"):
        long_sums().demonstrations([], 1, misread=1.5)
    with pytest.raises(ValueError, match="2 <= min_terms <= max_terms"):
        ChainSum("none", min_terms=5, max_terms=4, exponent=1.0, warm_exponent=1.0, misread=0.0)


def test_rows_survive_a_file(tmp_path):
    rows = long_sums().generate("heldout", 20, 1)
    path = tmp_path / "data" / "heldout.jsonl"
    assert write_jsonl(path, rows) == 20
    assert [json.loads(line) for line in path.read_text().splitlines()] == rows
    assert [file.name for file in path.parent.iterdir()] == ["heldout.jsonl"]


@pytest.mark.parametrize(("split", "size"), [("test", 1), (None, 1), ("train", -1), ("heldout", 1.5)])
@pytest.mark.parametrize("name", ["programs", "long-chain-sum", "tool-sums"])
def test_a_split_that_is_not_there_ends_at_once(name, split, size):
    """`generate("test", ...)` drew questions for ever, since none is of that split."""
    with pytest.raises(SettingsError, match=r"found the split .* expected one of train, heldout|found a size of"):
        get_task(name).generate(split, size=size, seed=1)
