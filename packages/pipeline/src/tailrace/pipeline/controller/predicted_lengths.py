"""The lengths that are predicted for prompts, and the prompts that a ranker was asked for. The ledger owns them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.pipeline.controller.prediction_record import PredictionRecord
from tailrace.ranker import Prediction, remaining_tokens


@dataclass(slots=True)
class PredictedLengths:
    """Of prompts that are open, or may be launched soon. A prompt that is done is forgotten, and stays so.

    Args:
        tokens: median of the response tokens by prompt.
        p90: their 0.9-quantile by prompt, where it is predicted.
        asked: prompts that the ranker that is up was asked for, whether it has answered or not.
        old: prompts that have not started, and whose prediction is of a ranker that has learned anew since.
        record: what was predicted, beside how long it became.
    """

    tokens: dict[int, float] = field(default_factory=dict)
    p90: dict[int, float] = field(default_factory=dict)
    asked: dict[int, None] = field(default_factory=dict)
    old: dict[int, None] = field(default_factory=dict)
    record: PredictionRecord = field(default_factory=PredictionRecord)

    def of(self, prompt: int, generated: int) -> tuple[float | None, float | None]:
        """`predicted` and `left` of the view of a trajectory that has so many response tokens and has not ended.

        What is left is the mean of the lengths above `generated`, less that. It is not the median less that: who has generated
        the median is not about to end, but is one of the longer half.
        """
        p50, p90 = self.tokens.get(prompt), self.p90.get(prompt)
        if p50 is None or p90 is None:
            return p50, None
        return p50, remaining_tokens(Prediction(p50, p90, p50), generated)

    def predict(self, prompt: int, tokens: float, p90: float | None) -> None:
        """Set what is predicted for a prompt, in place of what was."""
        self.tokens[prompt] = tokens
        self.old.pop(prompt, None)
        self.p90.pop(prompt, None)
        if p90 is not None:
            self.p90[prompt] = p90

    def missing(self, prompt: int) -> bool:
        """Whether nothing is predicted for a prompt, or nothing new, and nobody was asked who could still answer."""
        return prompt not in self.asked and (prompt not in self.tokens or prompt in self.old)

    def done(self, prompt: int) -> None:
        """Forget a prompt that is not launched again. An answer that is still under way finds nobody who asked."""
        self.tokens.pop(prompt, None)
        self.p90.pop(prompt, None)
        self.asked.pop(prompt, None)
        self.old.pop(prompt, None)
