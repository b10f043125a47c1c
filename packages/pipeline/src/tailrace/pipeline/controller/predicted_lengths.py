"""The lengths that are predicted for prompts, and the prompts that a ranker was asked for. The ledger owns them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class PredictedLengths:
    """Of prompts that are open, or may be launched soon. A prompt that is done is forgotten, and stays so.

    Args:
        tokens: predicted response tokens by prompt.
        asked: prompts that the ranker that is up was asked for, whether it has answered or not.
    """

    tokens: dict[int, float] = field(default_factory=dict)
    asked: dict[int, None] = field(default_factory=dict)

    def get(self, prompt: int) -> float | None:
        """Response tokens predicted for each trajectory of a prompt; None if nothing is predicted."""
        return self.tokens.get(prompt)

    def missing(self, prompt: int) -> bool:
        """Whether nothing is predicted for a prompt, and nobody was asked who could still answer."""
        return prompt not in self.tokens and prompt not in self.asked

    def done(self, prompt: int) -> None:
        """Forget a prompt that is not launched again. An answer that is still under way finds nobody who asked."""
        self.tokens.pop(prompt, None)
        self.asked.pop(prompt, None)
