"""The contract suite finds what it says, and passes what is right."""

import importlib
import os
import sys
from pathlib import Path

import pytest

from tailrace.environment.testing import check_environment

sys.path.insert(0, str(Path(__file__).parent))  # classes are found by their module, as a user of the suite has them
environments = importlib.import_module("environments")
broken = importlib.import_module("broken_environments")

ROWS = [({"begin": 1}, ["1", "2", "x", "stop"]), ({"begin": 50}, ["3", "4"]), ({}, [])]


@pytest.mark.parametrize("name", ["Sum", "Replayed", "Fragile"])
def test_what_is_right_passes(name):
    check_environment(getattr(environments, name), rows=ROWS, options={"greeting": "hello"})


def test_what_speaks_in_tokens_passes():
    check_environment(environments.Tokens, rows=[({"begin": 1}, [[1, 2], [0]]), ({"begin": 50}, [[3]])])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Shuffled", "rows(0, 5) returned"),
        ("OneRow", "expected a list of objects"),
        ("NoText", "reset: found an observation of type NoneType"),
        ("NoAnswer", "expected an answer with 'observation' and 'done'"),
        ("Strict", "what a model writes is answered"),
        ("Counting", "it says that it is replayable, and answered"),
        ("Sharing", "sessions side by side answered"),
        ("TextSnapshot", "found a snapshot of type str, expected bytes"),
        ("EmptySnapshot", "restored after 0 turns it answered"),
        ("CostlySnapshot", "after a snapshot it answered"),
        ("LargeSnapshot", "found a snapshot of 2,097,152 bytes"),
        ("Placed", "in a worker process it answered"),
        ("Homesick", "in a worker process, as broken_environments:Homesick"),
    ],
)
def test_what_breaks_the_contract_is_found(name, said, monkeypatch):
    monkeypatch.setenv("HOME_PID", str(os.getpid()))
    with pytest.raises(AssertionError) as found:
        check_environment(getattr(broken, name), rows=ROWS)
    assert said in str(found.value)


def test_a_function_that_is_not_importable_is_named_by_a_reference():
    def make():
        return environments.Sum()

    check_environment(make, rows=ROWS, reference=f"{Path(environments.__file__)}:Sum")
    with pytest.raises(AssertionError, match="in a worker process, as"):
        check_environment(make, rows=ROWS)


def test_one_row_is_too_few():
    with pytest.raises(ValueError, match="expected two at least"):
        check_environment(environments.Sum, rows=ROWS[:1])
