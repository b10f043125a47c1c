"""Verifier ``environment``: the reward that the environment itself gave, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.reward.turns import turns_in


def environment(response: str, answer: str, metadata: Mapping[str, Any]) -> float:  # noqa: ARG001 (the protocol passes them)
    """The sum of the environment's rewards; 0.0 for a response that asked it nothing."""
    turns = turns_in(metadata)
    return 0.0 if turns is None else float(turns["reward"])
