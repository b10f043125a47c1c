"""Chooses the hidden tests of a specified function, so that no likely mistake passes them all."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tailrace.reward.tasks.specification import Clause, Operation, evaluate

_FEWEST, _MOST = 3, 6
_ARGUMENTS = range(-99, 100)
_CANDIDATES = 40  # arguments that are tried for the tests of one function
_ALL_SUBSETS = 4  # with so many subtractions, every set of misread ones is tried; with more, _SUBSETS of them
_SUBSETS = 24


def hidden_tests(clauses: Sequence[Clause], rng: random.Random) -> list[dict[str, Any]] | None:
    """Three to six tests as rows have them: ``{"args": [7], "expected": 12}``.

    At least one of them fails for each function that leaves a clause out, that misreads a subtraction as an addition, or that
    misreads several; and for each that returns the same for all arguments. None where no six tests are found that do so.
    """
    arguments = rng.sample(_ARGUMENTS, _CANDIDATES)
    chosen, spare = arguments[:_FEWEST], iter(arguments[_FEWEST:])
    expected = {argument: evaluate(clauses, argument) for argument in chosen}
    wrong = [other for other in _mistakes(clauses, rng) if _passes(other, expected)]
    while wrong or len(set(expected.values())) == 1:
        argument = next(spare, None)
        if argument is None or len(expected) == _MOST:
            return None
        value = evaluate(clauses, argument)
        left = [other for other in wrong if evaluate(other, argument) == value]
        if len(left) < len(wrong) or value not in expected.values():
            wrong, expected[argument] = left, value
    return [{"args": [argument], "expected": value} for argument, value in expected.items()]


def _passes(clauses: Sequence[Clause], expected: dict[int, int]) -> bool:
    return all(evaluate(clauses, argument) == value for argument, value in expected.items())


def misreadings(clauses: Sequence[Clause], rng: random.Random) -> Iterator[list[Clause]]:
    """The specification with one or more of its subtractions misread: every set of them, or many sets of many."""
    places = [place for place, clause in enumerate(clauses) if clause.operation is Operation.SUBTRACT]
    if len(places) <= _ALL_SUBSETS:
        subsets = [set(chosen) for size in range(len(places)) for chosen in itertools.combinations(places, size + 1)]
    else:
        drawn = [{place for place in places if rng.random() < 0.5} for _ in range(_SUBSETS)]
        subsets = [*({place} for place in places), set(places), *filter(None, drawn)]
    for subset in subsets:
        yield [
            replace(clause, operation=Operation.ADD) if place in subset else clause
            for place, clause in enumerate(clauses)
        ]


def _mistakes(clauses: Sequence[Clause], rng: random.Random) -> Iterator[Sequence[Clause]]:
    yield from misreadings(clauses, rng)
    for place in range(len(clauses)):
        yield [*clauses[:place], *clauses[place + 1 :]]
