"""Verifier ``judge``: the name by which rows ask for a language model as their judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.reward.errors import ScoringError


def judge(response: str, answer: str, metadata: Mapping[str, Any]) -> float:  # noqa: ARG001 (the protocol passes it)
    """Never scores here: a scoring worker has no model. A scheduler sends rows of this verifier to its judge's process.

    Raises:
        ScoringError: always; it says what is missing.
    """
    raise ScoringError("found a row for the verifier 'judge' and no judge; a scheduler with a judge scores it")
