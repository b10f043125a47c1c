"""Verifiers that judge nothing themselves, or text alone.

``exact`` compares the answer's text after normalisation, ``environment`` takes the reward that the environment gave, and
``judge`` is the name by which rows ask for a language model as their judge.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from tailrace.reward.errors import ScoringError
from tailrace.reward.extraction import final_answer, solution_answer
from tailrace.reward.turns import said, turns_in


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
