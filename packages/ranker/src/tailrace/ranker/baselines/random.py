"""The baseline ``random``: an order that says nothing, with the quantiles of all lengths."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from tailrace.ranker.baselines.table import RulePredictor, saved
from tailrace.ranker.by_score import QuantilesByScore
from tailrace.ranker.censoring import all_samples
from tailrace.ranker.example import Example
from tailrace.ranker.methods import Setting
from tailrace.ranker.prediction import Prediction


@dataclass(frozen=True, slots=True)
class Random:
    """A score from a hash of the seed and the prompt: what recall is by chance."""

    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = True

    def fit(self, examples: Sequence[Example], setting: Setting) -> RulePredictor:
        """Learn the quantiles of all lengths."""
        pooled = QuantilesByScore.fit([0.0], [all_samples(examples)])
        return RulePredictor(self, _Rule(setting.seed, pooled.points))

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> RulePredictor:
        """Read what `fit` learned."""
        del setting
        data = saved(files, seed=int, points=list)
        return RulePredictor(self, _Rule(data["seed"], QuantilesByScore.from_json(data["points"]).points))


@dataclass(frozen=True, slots=True)
class _Rule:
    seed: int
    points: tuple[tuple[float, float, float], ...]

    def __call__(self, prompt: str) -> Prediction:
        digest = hashlib.blake2b(f"{self.seed} {prompt}".encode(errors="surrogatepass"), digest_size=7).digest()
        (_, p50, p90), *_ = self.points
        return Prediction(p50, p90, int.from_bytes(digest) / 2**56)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
