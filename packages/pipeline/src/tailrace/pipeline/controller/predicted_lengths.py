"""The lengths of prompts and those predicted for their responses, and what is asked for. The ledger owns them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.contracts import Predicted
from tailrace.pipeline.controller.prediction_record import PredictionRecord
from tailrace.ranker import Prediction, remaining_tokens


@dataclass(slots=True)
class PredictedLengths:
    """Predictions for prompts that are open or may be launched soon. A prompt that is done is forgotten, and stays so.

    Args:
        tokens: response tokens by prompt with which its trajectories are ordered and planned: their mean, or their median
            where no mean is predicted.
        quantiles: their median and their 0.9-quantile by prompt, where both are predicted.
        asked: prompts that the ranker that is up was asked for, whether it has answered or not.
        old: prompts that have not started, and whose prediction is of a ranker that has learned anew since.
        record: what was predicted, beside how long it became.
    """

    tokens: dict[int, float] = field(default_factory=dict)
    quantiles: dict[int, tuple[float, float]] = field(default_factory=dict)
    asked: dict[int, None] = field(default_factory=dict)
    old: dict[int, None] = field(default_factory=dict)
    record: PredictionRecord = field(default_factory=PredictionRecord)

    def of(self, prompt: int, generated: int) -> tuple[float | None, float | None]:
        """`predicted` and `left` of the view of a trajectory that has so many response tokens and has not ended.

        What is left is the mean of the lengths above `generated`, less that. It is not the median less that: who has generated
        the median is not about to end, but is one of the longer half.
        """
        tokens, quantiles = self.tokens.get(prompt), self.quantiles.get(prompt)
        if tokens is None or quantiles is None:
            return tokens, None
        return tokens, remaining_tokens(Prediction(*quantiles, tokens), generated)

    def predict(self, event: Predicted) -> None:
        """Set what is predicted for a prompt, in place of what was."""
        self.tokens[event.prompt] = event.tokens if event.mean is None else event.mean
        self.old.pop(event.prompt, None)
        self.quantiles.pop(event.prompt, None)
        if event.p90 is not None:
            self.quantiles[event.prompt] = event.tokens, event.p90

    def missing(self, prompt: int) -> bool:
        """Whether nothing is predicted for a prompt, or nothing new, and nobody was asked who could still answer."""
        return prompt not in self.asked and (prompt not in self.tokens or prompt in self.old)

    def done(self, prompt: int) -> None:
        """Forget a prompt that is not launched again. An answer that is still under way finds nobody who asked."""
        self.tokens.pop(prompt, None)
        self.quantiles.pop(prompt, None)
        self.asked.pop(prompt, None)
        self.old.pop(prompt, None)


@dataclass(slots=True)
class PromptLengths:
    """Tokens of the prompts that are open or may be launched soon. The ledger owns them.

    Args:
        tokens: by prompt.
        asked: prompts that the data role which is up was asked for and has not measured yet.
        measured, total: how many prompts were measured in the run, and their tokens.
    """

    tokens: dict[int, int] = field(default_factory=dict)
    asked: dict[int, None] = field(default_factory=dict)
    measured: int = 0
    total: int = 0

    def of(self, prompt: int) -> int:
        """Tokens of a prompt: its own, or the mean of those that were measured; 0 while none is."""
        tokens = self.tokens.get(prompt)
        return tokens if tokens is not None else round(self.total / self.measured) if self.measured else 0

    def done(self, prompt: int) -> None:
        """Forget a prompt that is not launched again."""
        self.tokens.pop(prompt, None)
        self.asked.pop(prompt, None)
