"""How sessions begin where the environment says the first word: each row has what it said when the run was prepared.

All samples of a group read one prompt. So the environment is asked once for each row, before the run, and what it says is the
row's prompt. Every session of the row is given the same data again, and must begin with the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tailrace.environment import Observation
from tailrace.trajstore import Prompt

COLUMN = "beginning"
"""The column of a run's own prompt files with a row's beginning."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """How each session of a row begins.

    Args:
        where: the row's place in the user's file, or among the environment's own rows, for messages.
        prompt: the row's own prompt, which the environment gets; often empty.
        seed: the row's seed, which the environment gets.
        observation: what it said to them: text, or token ids if it renders prompts itself.
    """

    where: str
    prompt: str
    seed: int
    observation: Observation

    @property
    def tokens(self) -> tuple[int, ...] | None:
        """The whole prompt as token ids, of an environment that renders prompts itself; None of one that says text."""
        return None if isinstance(self.observation, str) else tuple(self.observation)

    def same(self, observation: Observation) -> bool:
        """Whether a session has begun with the same."""
        if isinstance(self.observation, str) or isinstance(observation, str):
            return self.observation == observation
        return tuple(self.observation) == tuple(observation)

    def plain(self) -> dict[str, Any]:
        """The beginning as JSON values."""
        return asdict(self)


def beginning_of(prompt: Prompt) -> Beginning | None:
    """The beginning of a row; None if its prompt says everything."""
    found = prompt.metadata.get(COLUMN)
    return Beginning(**found) if isinstance(found, Mapping) else None
