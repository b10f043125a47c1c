"""Verifier ``exact``: the answer's text, letter for letter after normalisation."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from tailrace.reward.extraction import final_answer


def normalise(text: str) -> str:
    """Unicode NFKC, case folded, runs of white space as one space, no surrounding space and no final full stop."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).removesuffix(".").rstrip()


def exact(response: str, answer: str, metadata: Mapping[str, Any]) -> float:  # noqa: ARG001 (the protocol passes it)
    r"""1.0 if the tagged or boxed answer, or the whole response where neither is there, equals `answer`; else 0.0."""
    found = final_answer(response)
    return float(normalise(response if found is None else found) == normalise(answer))
