"""The baseline ``prompt-length``: the longer the question, the longer the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tailrace.ranker.baselines.table import RulePredictor, saved
from tailrace.ranker.censoring import QuantilesByScore
from tailrace.ranker.example import Example
from tailrace.ranker.methods import Setting
from tailrace.ranker.prediction import Prediction


@dataclass(frozen=True, slots=True)
class PromptLength:
    """Predicts characters of the prompt times the mean tokens per character over all responses."""

    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = True

    def fit(self, examples: Sequence[Example], setting: Setting) -> RulePredictor:
        """Learn the quantiles of the lengths of responses to prompts of similar length."""
        del setting
        characters = sum(len(example.prompt) * len(example.lengths) for example in examples)
        each = sum(sum(example.lengths) for example in examples) / max(1, characters)
        scores = [each * len(example.prompt) for example in examples]
        return RulePredictor(self, _Rule(each, QuantilesByScore.fit(scores, [example.samples for example in examples])))

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> RulePredictor:
        """Read what `fit` learned."""
        del setting
        data = saved(files, tokens_per_character=float, points=list)
        return RulePredictor(self, _Rule(data["tokens_per_character"], QuantilesByScore.from_json(data["points"])))


@dataclass(frozen=True, slots=True)
class _Rule:
    tokens_per_character: float
    quantiles: QuantilesByScore

    def __call__(self, prompt: str) -> Prediction:
        return self.quantiles(self.tokens_per_character * len(prompt))

    def to_json(self) -> dict[str, Any]:
        return {"tokens_per_character": self.tokens_per_character, "points": self.quantiles.points}
