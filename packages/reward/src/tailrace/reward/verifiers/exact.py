"""Verifier ``exact``: compares the answer's text after normalisation."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from tailrace.reward.extraction import final_answer, solution_answer
from tailrace.reward.turns import said


def normalise(text: str) -> str:
    """The text in Unicode NFKC, case folded, with white space runs as one space, stripped, without a final full stop."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).removesuffix(".").rstrip()


def exact(response: str, answer: str, metadata: Mapping[str, Any]) -> float:
    r"""1.0 if the tagged or boxed answer (without either, the whole response) equals `answer`; else 0.0."""
    response = said(response, metadata)
    found = final_answer(response)
    return float(normalise(response if found is None else found) == normalise(solution_answer(answer)))
