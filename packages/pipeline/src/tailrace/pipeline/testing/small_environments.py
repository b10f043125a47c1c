"""Environments of small runs. Standard library only: worker processes load this file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any


class TurnCounter:
    """Answers with the number of the turn, some turns slowly, and ends a conversation after so many turns.

    Each turn earns 1. Nothing of a session can be had again.
    """

    def __init__(self, most: int = 3, slow_s: float = 0.02) -> None:
        self._most, self._slow_s = most, slow_s
        self._turns: list[str] = []

    def reset(self, row: Mapping[str, Any]) -> str:
        """Begin; the prompt says everything."""
        del row
        return ""

    def step(self, action: str) -> dict[str, Any]:
        """The number of the turn, and the length of all turns so far."""
        self._turns.append(action)
        time.sleep(self._slow_s * (len(action) % 3))
        said = f"{len(self._turns)} + {sum(map(len, self._turns))} = "
        return {"observation": said, "done": len(self._turns) >= self._most, "reward": 1.0}

    def close(self) -> None:
        """Nothing is held."""


class CountsAgain(TurnCounter):
    """The same, and a session can be played again."""

    replayable = True


class Branches(CountsAgain):
    """Answers in token ids. Every other answer begins a context."""

    tokenized = True

    def reset(self, row: Mapping[str, Any]) -> Any:
        """Begin; the prompt says everything."""
        del row
        return []

    def step(self, action: Any) -> dict[str, Any]:
        """A token for the number of the turn, one for its length, and whether the model goes on from them alone."""
        told = super().step(action)
        number = len(self._turns)
        return {**told, "observation": [2 + number, 6 + len(action) % 3], "fresh": number % 2 == 1}
