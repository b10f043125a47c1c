"""A trajectory to be generated: the lengths of its parts and its reward."""

from __future__ import annotations

from dataclasses import dataclass

Turns = tuple[tuple[int, float], ...]


@dataclass(slots=True)
class ModelledSample:
    """One sample of a group. It is not frozen, since millions are created and freezing would dominate that time.

    Args:
        prompt_tokens: number of prompt tokens, the same in a whole group.
        turns: response tokens of each turn, and the seconds in the environment after it (0 after the last).
        reward: the verifier's reward.
        reward_s: seconds to score it, without the fleet's delays; infinite if its program never ends.
        reference_s: seconds of the prompt's reference solution; None if it has none.
        kind: the pool that scores it; empty if the workload has no kinds.
    """

    prompt_tokens: int
    turns: Turns
    reward: float
    reward_s: float = 0.0
    kind: str = ""
    reference_s: float | None = None

    @property
    def response_tokens(self) -> int:
        """Number of response tokens of all turns."""
        turns = self.turns
        return turns[0][0] if len(turns) == 1 else sum(tokens for tokens, _ in turns)
