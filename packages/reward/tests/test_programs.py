"""The task of programs to write: right references, hidden tests that catch every misreading, tails, and one form of rows."""

import asyncio
import random
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.reward.code import program_in, read_tests, run_tests
from tailrace.reward.errors import SpecificationError
from tailrace.reward.sandbox import select_sandbox
from tailrace.reward.tasks import Programs, get_task, split_of
from tailrace.reward.tasks.programs import (
    Clause,
    Operation,
    evaluate,
    fenced,
    hidden_tests,
    misreadings,
    program,
    read_specification,
    specification,
)

SEEDS = st.integers(0, 2**31)
TASK = get_task("programs")
CLAUSES = st.lists(
    st.one_of(
        st.builds(Clause, st.sampled_from([Operation.ADD, Operation.SUBTRACT]), st.integers(1, 9), st.integers(0, 40)),
        st.builds(Clause, st.sampled_from([Operation.MULTIPLY, Operation.MODULO]), st.integers(2, 99)),
        st.just(Clause(Operation.HALVE, 2)),
    ),
    min_size=1,
    max_size=12,
)


def defined(source):
    """The function of a source that this task wrote itself, with loops that end."""
    names = {}
    exec(source, names)
    return names["f"]


@settings(max_examples=100, deadline=None)
@given(clauses=CLAUSES, argument=st.integers(-1000, 1000))
def test_the_program_computes_what_its_text_says(clauses, argument):
    assert read_specification(specification(clauses)) == clauses
    assert defined(program(clauses))(argument) == evaluate(clauses, argument)


@settings(max_examples=60, deadline=None)
@given(clauses=CLAUSES, seed=SEEDS)
def test_a_misread_program_fails_a_hidden_test(clauses, seed):
    tests = hidden_tests(clauses, random.Random(seed))
    if tests is None:
        return
    assert 3 <= len(tests) <= 6
    assert len({test["expected"] for test in tests}) > 1
    right = defined(program(clauses))
    assert [right(*test["args"]) for test in tests] == [test["expected"] for test in tests]
    places = [place for place, clause in enumerate(clauses) if clause.operation is Operation.SUBTRACT]
    for misread in [{place} for place in places] + ([set(places)] if places else []):
        wrong = defined(program(clauses, misread))
        assert any(wrong(*test["args"]) != test["expected"] for test in tests), (misread, tests)


def test_functions_that_no_tests_can_tell_from_a_misreading_are_dropped():
    add, subtract = (Clause(operation, 3) for operation in (Operation.ADD, Operation.SUBTRACT))
    assert (
        hidden_tests([subtract, Clause(Operation.MODULO, 6)], random.Random(1)) is None
    )  # v - 3 and v + 3 are equal mod 6
    assert hidden_tests([add, Clause(Operation.MODULO, 1)], random.Random(1)) is None  # always 0
    assert hidden_tests([subtract, Clause(Operation.MODULO, 7)], random.Random(1)) is not None


def test_every_set_of_misread_subtractions_is_considered():
    clauses = [Clause(Operation.SUBTRACT, number) for number in (1, 2, 4)]
    found = {evaluate(wrong, 0) for wrong in misreadings(clauses, random.Random(1))}
    assert found == {-7 + 2 * flipped for flipped in range(1, 8)}


@settings(max_examples=10, deadline=None)
@given(seed=SEEDS)
def test_rows_hold_a_reference_that_passes_its_tests(seed):
    for row in TASK.generate("train", 40, seed):
        metadata = row["metadata"]
        assert row["verifier"] == "code"
        assert metadata.keys() == {"entry_point", "tests", "reference_time_s"}
        assert row["answer"] == program(read_specification(row["prompt"]))
        if metadata["reference_time_s"] > 0.03:  # its loops would take long here
            continue
        right = defined(row["answer"])
        assert all(right(*test["args"]) == test["expected"] for test in metadata["tests"])


@settings(max_examples=10, deadline=None)
@given(seed=SEEDS)
def test_careful_demonstrations_are_the_references(seed):
    rows = TASK.generate("train", 60, seed)
    for row, (prompt, response) in zip(rows, TASK.demonstrations(rows, seed, misread=0.0), strict=True):
        assert prompt == row["prompt"]
        assert response == fenced(row["answer"])
        assert response.startswith(TASK.forced_prefix)


def test_mistakes_come_as_often_as_asked():
    rows = TASK.generate("train", 2000, 3)
    responses = [response for _, response in TASK.demonstrations(rows, 3, misread=0.65)]
    asked = sum(len(re.findall(r"subtract", row["prompt"])) for row in rows)
    kept = sum(len(re.findall(r"= v\d+ - |v\d+ -=", response)) for response in responses)
    assert 1 - kept / asked == pytest.approx(0.65, abs=0.04)
    assert 0.03 <= sum("n += 1" in response for response in responses) / len(rows) <= 0.1
    right = sum(fenced(row["answer"]) == response for row, response in zip(rows, responses, strict=True)) / len(rows)
    assert 0.3 < right < 0.5


def test_lengths_and_times_have_long_tails():
    rows = TASK.generate("train", 2000, 5)
    lengths = sorted(len(row["answer"].split()) for row in rows)
    assert lengths[int(0.99 * len(lengths))] >= 4 * lengths[len(lengths) // 2]
    times = Counter(row["metadata"]["reference_time_s"] for row in rows)
    slow = sorted(times.elements())
    assert slow[int(0.9 * len(slow))] < 0.03 < 0.2 < slow[-1] < 0.5


def test_the_seed_decides_everything():
    for split in ("train", "heldout"):
        assert TASK.generate(split, 100, 1) == TASK.generate(split, 200, 1)[:100]
        assert TASK.generate(split, 100, 1) != TASK.generate(split, 100, 2)
        assert all(split_of(row["prompt"]) == split for row in TASK.generate(split, 100, 1))
    assert TASK.warm_start(300, 1) == TASK.warm_start(400, 1)[:300]
    rows = TASK.generate("train", 100, 1)
    assert TASK.demonstrations(rows, 1) != TASK.demonstrations(rows, 2)


def test_wrong_requests_are_refused():
    other = {"prompt": "7 + 5 = ", "answer": "12", "verifier": "exact", "metadata": {}}
    with pytest.raises(SpecificationError, match="expected a specification"):
        TASK.demonstrations([other], 1)
    with pytest.raises(SpecificationError, match="found the line ' v1 divide 3', expected a clause"):
        read_specification("Write f(v0) in Python:\n v1 divide 3\n return v1\n")
    with pytest.raises(ValueError, match="1 <= min_clauses <= max_clauses"):
        Programs("none", 3, 2, exponent=1.0, warm_exponent=1.0, repeated=0.2, misread=0.5, endless=0.1)


@pytest.mark.deep
def test_the_sandbox_scores_careful_misread_and_endless_programs_as_they_are():
    rows = [row for row in TASK.generate("train", 200, 9) if "times subtract" in row["prompt"]][:4]
    endless = Programs("endless", 2, 20, exponent=1.8, warm_exponent=1.2, repeated=0.2, misread=0.5, endless=1.0)
    asked = [
        (TASK.demonstrations(rows, 9, misread=0.0), 5.0, (True, "")),
        (replace(TASK, endless=0.0).demonstrations(rows, 9, misread=1.0), 5.0, (False, "")),
        (endless.demonstrations(rows, 9), 0.2, (False, "cpu 0.2 s")),
    ]

    async def outcomes():
        sandbox = select_sandbox()
        try:
            return [
                [
                    await run_tests(sandbox, program_in(response), read_tests(row["metadata"]), timeout_s)
                    for row, (_, response) in zip(rows, demonstrations, strict=True)
                ]
                for demonstrations, timeout_s, _ in asked
            ]
        finally:
            await sandbox.close()

    for found, (_, _, expected) in zip(asyncio.run(outcomes()), asked, strict=True):
        assert [(run.right, run.over_budget) for run in found] == [expected] * len(rows)
