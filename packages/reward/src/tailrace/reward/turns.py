"""What a verifier gets to know of a response with several turns: under ``turns`` in its metadata.

``{"count": 3, "reward": 1.5, "done": true, "last": "..."}``: the number of the model's turns, the sum of the environment's
rewards, whether the environment ended the trajectory, and the text of the model's last turn. The response itself is the text of
all turns and of what the environment answered between them. Metadata without ``turns`` is of a response that asked no
environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TURNS = "turns"


def of_turns(count: int, reward: float, done: bool, last: str) -> dict[str, Any]:
    """What is added to the metadata of a response with turns."""
    return {TURNS: {"count": count, "reward": reward, "done": done, "last": last}}


def said(response: str, metadata: Mapping[str, Any]) -> str:
    """Where the model's final answer stands: its last turn. What an environment answered is not the model's answer."""
    turns = metadata.get(TURNS)
    return str(turns["last"]) if isinstance(turns, Mapping) and "last" in turns else response
