"""The baseline ``random``: an order that says nothing, with the quantiles of all lengths."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from tailrace.ranker.baselines.table import RulePredictor, saved
from tailrace.ranker.censoring import all_samples, mean_tokens, quantiles
from tailrace.ranker.example import Example
from tailrace.ranker.methods import Setting
from tailrace.ranker.prediction import Prediction


@dataclass(frozen=True, slots=True)
class Random:
    """A score from a hash of the seed and the prompt, between half and one and a half of the mean: what recall is by chance."""

    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = True

    def fit(self, examples: Sequence[Example], setting: Setting) -> RulePredictor:
        """Learn the quantiles of all lengths."""
        pooled = all_samples(examples)
        return RulePredictor(self, _Rule(setting.seed, mean_tokens(pooled), list(quantiles(pooled))))

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> RulePredictor:
        """Read what `fit` learned."""
        del setting
        data = saved(files, seed=int, mean=float, pooled=list)
        return RulePredictor(self, _Rule(data["seed"], data["mean"], data["pooled"]))


@dataclass(frozen=True, slots=True)
class _Rule:
    seed: int
    mean: float
    pooled: list[float]

    def __call__(self, prompt: str) -> Prediction:
        digest = hashlib.blake2b(f"{self.seed} {prompt}".encode(errors="surrogatepass"), digest_size=7).digest()
        return Prediction(self.pooled[0], self.pooled[1], self.mean * (0.5 + int.from_bytes(digest) / 2**56))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
