"""What a verifier gets to know of a response with several turns: under ``turns`` in its metadata.

``{"count": 3, "reward": 1.5, "done": true, "last": "..."}``: the number of the model's turns, the sum of the environment's
rewards, whether the environment ended the trajectory, and the text of the model's last turn. The response itself is the text of
all turns and of what the environment answered between them. A row's own column ``turns`` is data of the row: it says nothing of
the response, and only an object of `Turns` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TURNS = "turns"


class Turns(dict[str, Any]):
    """What is known of a response's turns: no row can have it, since rows have JSON values."""


def of_turns(count: int, reward: float, done: bool, last: str) -> dict[str, Any]:
    """What is added to the metadata of a response with turns."""
    return {TURNS: Turns(count=count, reward=reward, done=done, last=last)}


def turns_in(metadata: Mapping[str, Any]) -> Turns | None:
    """What the metadata says of the response's turns; None of a response that asked no environment."""
    found = metadata.get(TURNS)
    return found if isinstance(found, Turns) else None


def said(response: str, metadata: Mapping[str, Any]) -> str:
    """Where the model's final answer stands: its last turn. What an environment answered is not the model's answer."""
    turns = turns_in(metadata)
    return response if turns is None else str(turns["last"])
