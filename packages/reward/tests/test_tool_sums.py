"""The task of sums for a Python tool: what its demonstrations compute is what Python computes, and nothing else is right."""

import contextlib
import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.reward.tasks import split_of
from tailrace.reward.tasks.tool_sums import TOOL_SUMS, ToolSums
from tailrace.reward.verifiers.basic import exact

SEEDS = st.integers(0, 2**31)
_PIECE = re.compile(r" ?[^\s<>]+|\s|[<>]")  # as the small tokenizer cuts texts


def tool(turns):
    """What Python prints for each of these blocks, whose variables stay."""
    space, printed = {}, []
    for turn in turns:
        (block,) = re.findall(r"```python\n(.*?)```", turn, re.DOTALL)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(block, space)
        printed.append(out.getvalue())
    return printed


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, misread=st.sampled_from([0.0, 0.6, 1.0]))
def test_the_observations_of_a_transcript_are_what_python_prints(seed, misread):
    rows = TOOL_SUMS.generate("train", 40, seed)
    for row, transcript in zip(rows, TOOL_SUMS.transcripts(rows, seed, misread), strict=True):
        *turns, (answer, nothing) = transcript.turns
        assert (transcript.prompt, nothing) == (row["prompt"], "")
        assert tool(turn for turn, _ in turns) == [observation for _, observation in turns]
        if turns:
            assert len(turns) == len(row["metadata"]["parts"])
            assert answer == f"<answer>{turns[-1][1].strip()}</answer>"
            assert turns[0][0].startswith(TOOL_SUMS.forced_prefix)
        else:
            assert misread
            assert answer.startswith(TOOL_SUMS.no_tool_prefix)
        if misread == 0.0:
            assert exact(answer, row["answer"], row["metadata"]) == 1.0


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_the_answer_is_what_a_slow_reader_of_the_question_computes(seed):
    for row in TOOL_SUMS.generate("train", 40, seed):
        values = {}
        for line in row["prompt"].splitlines():
            if shown := re.fullmatch(r"show (v\d+) % 100", line):
                answer = values[shown[1]] % 100
            else:
                name, _, right = line.partition(" = ")
                values[name] = eval(right, {}, values | {"len": len})
        assert row["answer"] == str(answer)
        assert row["verifier"] == "exact"


def test_a_demonstration_is_its_transcripts_turns_with_the_answers_between_them():
    rows = TOOL_SUMS.generate("train", 200, 3)
    for (prompt, texts), transcript in zip(
        TOOL_SUMS.demonstrations(rows, 3), TOOL_SUMS.transcripts(rows, 3), strict=True
    ):
        assert prompt == transcript.prompt
        assert [*texts[0::2]] == [turn for turn, _ in transcript.turns]
        assert [*texts[1::2], ""] == [observation for _, observation in transcript.turns]


def test_a_value_that_only_the_tool_printed_earns_nothing():
    row = TOOL_SUMS.generate("train", 1, 1)[0]
    assert exact(f"```python\nprint(1)\n```{row['answer']}\n", row["answer"], {}) == 0.0


def test_the_demonstrator_misreads_and_guesses_as_often_as_asked():
    rows = TOOL_SUMS.generate("train", 3000, 5)
    transcripts = TOOL_SUMS.transcripts(rows, 5)
    direct = sum(len(transcript.turns) == 1 for transcript in transcripts)
    assert direct / len(rows) == pytest.approx(0.05, abs=0.01)
    worked = [(row, each) for row, each in zip(rows, transcripts, strict=True) if len(each.turns) > 1]
    asked = sum(row["prompt"].count(" - ") for row, _ in worked)
    kept = sum(turn.count(" - ") for _, each in worked for turn, _ in each.turns)
    assert 1 - kept / asked == pytest.approx(0.6, abs=0.02)
    right = sum(exact(each.turns[-1][0], row["answer"], {}) for row, each in worked) / len(worked)
    assert 0.2 < right < 0.5


def test_turns_and_lengths_have_a_tail_and_fit_the_small_run():
    rows = TOOL_SUMS.generate("train", 4000, 5)
    transcripts = TOOL_SUMS.transcripts(rows, 5, 0.0)
    turns = sorted(len(each.turns) for each in transcripts)
    assert (turns[0], turns[len(turns) // 2], turns[-1]) == (2, 2, 5)
    lengths = sorted(sum(len(_PIECE.findall(turn + seen)) + 1 for turn, seen in each.turns) for each in transcripts)
    assert lengths[int(0.99 * len(lengths))] > 2.5 * lengths[len(lengths) // 2]
    assert lengths[-1] <= 192
    assert max(len(_PIECE.findall(row["prompt"])) for row in rows) + 192 <= 320
    words = {piece for each in transcripts for turn, seen in each.turns for piece in _PIECE.findall(turn + seen)}
    asked = {piece for row in rows for piece in _PIECE.findall(row["prompt"])}
    assert len(words | asked) < 400


def test_the_seed_decides_everything_and_no_heldout_question_is_trained_on():
    for split in ("train", "heldout"):
        assert TOOL_SUMS.generate(split, 100, 1) == TOOL_SUMS.generate(split, 200, 1)[:100]
        assert TOOL_SUMS.generate(split, 100, 1) != TOOL_SUMS.generate(split, 100, 2)
        assert {split_of(row["prompt"]) for row in TOOL_SUMS.generate(split, 100, 1)} == {split}
    warm = TOOL_SUMS.warm_start(300, 1)
    assert warm == TOOL_SUMS.warm_start(400, 1)[:300]
    assert all(split_of(prompt) == "train" for prompt, _ in warm)


def test_a_warm_start_shows_longer_conversations_than_training_asks_for():
    shown = [(len(texts) + 1) // 2 for _, texts in TOOL_SUMS.warm_start(4000, 1, misread=0.0)]
    asked = [len(each.turns) for each in TOOL_SUMS.transcripts(TOOL_SUMS.generate("train", 4000, 1), 1, misread=0.0)]
    assert {*shown} == {*asked} == {2, 3, 4, 5}
    assert sum(shown) > 1.05 * sum(asked)


def test_wrong_requests_are_refused():
    with pytest.raises(ValueError, match="found 7 parts, expected 1 to 4"):
        ToolSums("x", 7, 1.0, 1.0, 0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="expected a probability"):
        TOOL_SUMS.transcripts([], 1, misread=2.0)
