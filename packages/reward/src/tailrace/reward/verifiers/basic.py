"""Verifiers that judge nothing themselves, or the text or the number alone.

``numeric`` compares the answer's exact value, however it is written, and ``exact`` its text after normalisation.
``environment`` takes the reward that the environment gave; ``judge`` is the name by which rows ask for a language model.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tailrace.reward.errors import ScoringError
from tailrace.reward.extraction import final_answer, last_number, solution_answer
from tailrace.reward.items import said, turns_in
from tailrace.reward.verifiers.notation import plain
from tailrace.reward.verifiers.quantities import parse_number, quantity


def normalise(text: str) -> str:
    """The text in Unicode NFKC, case folded, with white space runs as one space, stripped, without a final full stop."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).removesuffix(".").rstrip()


def exact(response: str, answer: str, metadata: Mapping[str, Any]) -> float:
    r"""1.0 if the tagged or boxed answer (without either, the whole response) equals `answer`; else 0.0."""
    response = said(response, metadata)
    found = final_answer(response)
    return float(normalise(response if found is None else found) == normalise(solution_answer(answer)))


def environment(response: str, answer: str, metadata: Mapping[str, Any]) -> float:  # noqa: ARG001 (the protocol passes them)
    """The sum of the environment's rewards; 0.0 for a response that asked it nothing."""
    turns = turns_in(metadata)
    return 0.0 if turns is None else float(turns["reward"])


def judge(response: str, answer: str, metadata: Mapping[str, Any]) -> float:  # noqa: ARG001 (the protocol passes it)
    """Never scores here: a scoring worker has no model. A scheduler sends rows of this verifier to its judge's process.

    Raises:
        ScoringError: always; it says what is missing.
    """
    raise ScoringError("found a row for the verifier 'judge' and no judge; a scheduler with a judge scores it")


_MAX_LETTERS = 400


def numeric(response: str, answer: str, metadata: Mapping[str, Any]) -> float:
    r"""1.0 if the response's number has exactly the value of `answer`, else 0.0.

    The number is the content of the answer tag or of ``\boxed{}``, perhaps with a unit, which may be left out but may not be
    another one. Without tag and box it is the last number of the response.

    Raises:
        ScoringError: `answer` is not a number.
    """
    asked = _quantity(solution_answer(answer))
    if asked is None:
        raise ScoringError(f"found the reference answer {answer[:60]!r}, expected a number; use the verifier 'exact'")
    response = said(response, metadata)
    found = final_answer(response)
    if found is None:
        found = last_number(response)
    given = None if found is None else _quantity(found)
    return float(given is not None and given[0] == asked[0] and (given[1] == asked[1] or "" in (given[1], asked[1])))


def is_number(text: str) -> bool:
    """Whether a reference answer is a number, perhaps with a unit."""
    return _quantity(text) is not None


def _quantity(text: str) -> tuple[Fraction, str] | None:
    """A number and its unit, or None. ``1011_2`` is no number: its digits are of another base."""
    if len(text) > _MAX_LETTERS or "_" in text:
        return None
    number, unit = quantity(plain(text))
    value = parse_number(number)
    if value is None and not unit:
        value = parse_number(text)
    return None if value is None else (value, unit or "%" * number.endswith("%"))
