"""A trajectory before it is generated: how long its parts will be, and what it will earn."""

from __future__ import annotations

from dataclasses import dataclass

Turns = tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Sample:
    """One sample of a group. Not frozen: millions are made, and freezing costs more than all else here.

    Args:
        prompt_tokens: tokens of the prompt, the same in a whole group.
        turns: response tokens of each turn and the seconds in the environment after it; 0 after the last.
        reward: the verifier's.
        reward_s: seconds to score it, beside what the fleet's delays add.
    """

    prompt_tokens: int
    turns: Turns
    reward: float
    reward_s: float = 0.0

    @property
    def response_tokens(self) -> int:
        """Response tokens of all turns."""
        turns = self.turns
        return turns[0][0] if len(turns) == 1 else sum(tokens for tokens, _ in turns)
