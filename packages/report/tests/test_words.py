"""Every reason has words, with its numbers, whoever gave it."""

import re
from typing import Any

import pytest

from tailrace.contracts import Reason, Why
from tailrace.contracts.testing.reasons import NUMBERS
from tailrace.report.reason_words import ENDS, REASONS, WAITS, end, many, waits, why


def test_every_kind_is_of_a_command_or_of_somebody_who_waits():
    assert {*REASONS, *WAITS} == set(Why)
    assert not REASONS.keys() & WAITS.keys()
    assert len({*WAITS.values(), *REASONS.values()}) == len(Why)
    for kind, words in WAITS.items():  # the report adds up the time of each
        assert waits(Reason(kind, numbers=dict.fromkeys(NUMBERS.get(kind, ()), 3.0))) == words
        assert "{" not in words


@pytest.mark.parametrize("kind", list(REASONS))
def test_every_reason_has_words_for_its_numbers(kind):
    names = {name for name in re.findall(r"{(\w+)", REASONS[kind]) if name != "who"}
    assert names <= NUMBERS.get(kind, frozenset())
    said = why(Reason(kind, "r7", dict.fromkeys(names, 3.0)))
    assert "{" not in said
    assert ("r7" in said) == ("{who}" in REASONS[kind])
    # and a policy of somebody else may leave them out
    assert "{" not in why(Reason(kind))


def test_numbers_without_a_place_in_the_words_are_said_too():
    assert why(Reason(Why.CHOSEN, numbers={"gain": 1234.5, "least": 10.0})) == (
        "the routing policy chose it (gain 1,234, least 10)"
    )
    assert why(Reason(Why.POLICY, numbers={"mood": 0.5})) == "the policy's own reason (mood 0.5)"
    assert why(Reason(Why.PULLING, numbers={"speed": 2.0})) == "pulling (speed 2)"
    # Nothing keeps a policy of somebody else from numbers that are none.
    odd: Any = {"gain": None, "least": "1\x1b", "who": 7.0, "waiting": "many"}
    assert why(Reason(Why.CHOSEN, numbers=odd)) == (
        r"the routing policy chose it (gain None, least 1\x1b, who 7, waiting many)"
    )
    assert why(Reason(Why.WAITING_TOO_LONG, "r1", odd)).startswith("waiting too long (gain None, ")


def test_ends_are_said_in_a_word_and_unknown_ones_as_they_are():
    assert {end(str(kind)) for kind in ENDS} == set(ENDS.values())
    assert end("eaten by a dog") == "eaten by a dog"
    assert end(str(Why.POLICY)) == "policy"


def test_one_is_not_many():
    assert (many(1, "step"), many(2, "step"), many(1000, "trajectory", "trajectories")) == (
        "1 step", "2 steps", "1,000 trajectories",
    )  # fmt: skip
