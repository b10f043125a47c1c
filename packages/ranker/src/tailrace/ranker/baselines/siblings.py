"""The baseline ``siblings``: as long as the prompt's other samples, those that have finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, variance
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
from tailrace.ranker.censoring import Sample, all_samples, quantiles
from tailrace.ranker.example import Example
from tailrace.ranker.methods import Setting
from tailrace.ranker.prediction import Prediction

_NEWEST = 64  # samples of a prompt that count: older ones are another policy's
_LEAST_PRIOR, _MOST_PRIOR = 0.1, 100.0


@dataclass(frozen=True, slots=True)
class Siblings:
    """Ranks by the mean of the prompt's samples, drawn towards the mean of all as far as samples of one prompt differ.

    With a variance w within prompts and b between them, n samples with mean m estimate (n m + (w/b) M)/(n + w/b), M the mean
    of all: the best linear estimate (Buehlmann's credibility). A prompt without samples has M.
    """

    needs_samples: ClassVar[bool] = True
    quick: ClassVar[bool] = True

    def fit(self, examples: Sequence[Example], setting: Setting) -> RulePredictor:
        """Learn the estimates, and how long the other samples of a prompt with a given estimate are."""
        del setting
        by_prompt = {digest: samples[-_NEWEST:] for digest, samples in samples_by_prompt(examples).items()}
        overall = fmean(length for length, _ in all_samples(examples))
        prior = _prior(list(by_prompt.values()))

        def estimate(samples: Sequence[Sample]) -> float:
            return (sum(length for length, _ in samples) + prior * overall) / (len(samples) + prior)

        # What half of the samples say of the other half, both ways.
        pairs: list[tuple[float, list[Sample]]] = []
        for samples in by_prompt.values():
            for known, asked in ((samples[::2], samples[1::2]), (samples[1::2], samples[::2])):
                if known and asked:
                    pairs.append((estimate(known), asked))
        pooled = all_samples(examples)
        seen = QuantilesByScore.fit([score for score, _ in pairs] or [0.0], [asked for _, asked in pairs] or [pooled])
        estimates = {digest: estimate(samples) for digest, samples in by_prompt.items()}
        return KnownPrompts(self, _Rule(estimates, overall, seen, list(quantiles(pooled))))

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> RulePredictor:
        """Read what `fit` learned."""
        del setting
        data = saved(files, known=dict, overall=float, quantiles=dict, pooled=list)
        by_score = QuantilesByScore.from_json(data["quantiles"].get("points"))
        return KnownPrompts(self, _Rule(check_table(data["known"]), data["overall"], by_score, data["pooled"]))


def _prior(prompts: Sequence[Sequence[Sample]]) -> float:
    """w/b, from the one-way analysis of variance; 1 where no prompt has two samples."""
    groups = [[length for length, _ in samples] for samples in prompts if len(samples) > 1]
    if len(groups) < 2:
        return 1.0
    within = fmean(variance(group) for group in groups)
    between = variance([fmean(group) for group in groups]) - within / fmean(map(len, groups))
    return min(_MOST_PRIOR, max(_LEAST_PRIOR, within / between)) if between > 0 else _MOST_PRIOR


@dataclass(frozen=True, slots=True)
class _Rule:
    known: dict[str, float]
    overall: float
    quantiles: QuantilesByScore
    pooled: list[float]

    def __call__(self, prompt: str) -> Prediction:
        estimate = self.known.get(digest_of(prompt))
        if estimate is None:
            return Prediction(self.pooled[0], self.pooled[1], self.overall)
        return self.quantiles(estimate)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
