"""The baseline ``last-length``: as long as the last time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from tailrace.ranker.baselines.table import (
    KnownPrompts,
    RulePredictor,
    check_table,
    digest_of,
    samples_by_prompt,
    saved,
)
from tailrace.ranker.by_score import QuantilesByScore
from tailrace.ranker.censoring import all_samples, quantiles
from tailrace.ranker.example import Example
from tailrace.ranker.methods import Setting
from tailrace.ranker.prediction import Prediction


@dataclass(frozen=True, slots=True)
class LastLength:
    """Ranks by the length of the prompt's last sample, of the newest version; by the median of all where there is none."""

    needs_samples: ClassVar[bool] = True
    quick: ClassVar[bool] = True

    def fit(self, examples: Sequence[Example], setting: Setting) -> RulePredictor:
        """Learn the last lengths, and how long a prompt's samples are that follow one of a given length."""
        del setting
        by_prompt = samples_by_prompt(examples)
        last = {digest: float(samples[-1][0]) for digest, samples in by_prompt.items()}
        # A sample is a fair example of what follows one that came before it.
        pairs = [
            (float(earlier[0]), samples[at + 1 :])
            for samples in by_prompt.values()
            for at, earlier in enumerate(samples[:-1])
        ]
        pooled = all_samples(examples)
        seen = QuantilesByScore.fit([length for length, _ in pairs] or [0.0], [later for _, later in pairs] or [pooled])
        return KnownPrompts(self, _Rule(last, seen, list(quantiles(pooled))))

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> RulePredictor:
        """Read what `fit` learned."""
        del setting
        data = saved(files, known=dict, quantiles=dict, pooled=list)
        by_score = QuantilesByScore.from_json(data["quantiles"].get("points"))
        return KnownPrompts(self, _Rule(check_table(data["known"]), by_score, data["pooled"]))


@dataclass(frozen=True, slots=True)
class _Rule:
    known: dict[str, float]
    quantiles: QuantilesByScore
    pooled: list[float]

    def __call__(self, prompt: str) -> Prediction:
        length = self.known.get(digest_of(prompt))
        if length is None:
            return Prediction(self.pooled[0], self.pooled[1], self.pooled[0])
        return self.quantiles(length)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
