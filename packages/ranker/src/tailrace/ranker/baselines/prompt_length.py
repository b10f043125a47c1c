"""The baseline ``prompt-length``: the longer the question, the longer the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tailrace.ranker.baselines.table import RulePredictor, saved
from tailrace.ranker.by_score import QuantilesByScore
from tailrace.ranker.example import Example
from tailrace.ranker.methods import Setting
from tailrace.ranker.prediction import Prediction


@dataclass(frozen=True, slots=True)
class PromptLength:
    """Ranks by the number of the prompt's characters."""

    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = True

    def fit(self, examples: Sequence[Example], setting: Setting) -> RulePredictor:
        """Learn the quantiles of the lengths of responses to prompts of similar length."""
        del setting
        scores = [float(len(example.prompt)) for example in examples]
        return RulePredictor(self, _Rule(QuantilesByScore.fit(scores, [example.samples for example in examples])))

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> RulePredictor:
        """Read what `fit` learned."""
        del setting
        return RulePredictor(self, _Rule(QuantilesByScore.from_json(saved(files, points=list)["points"])))


@dataclass(frozen=True, slots=True)
class _Rule:
    quantiles: QuantilesByScore

    def __call__(self, prompt: str) -> Prediction:
        return self.quantiles(float(len(prompt)))

    def to_json(self) -> dict[str, Any]:
        return {"points": self.quantiles.points}
