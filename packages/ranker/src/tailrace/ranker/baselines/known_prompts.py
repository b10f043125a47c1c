"""The baselines ``siblings`` and ``last-length``, which know a prompt by its own samples, those that have finished."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, variance
from typing import Any, ClassVar

from tailrace.ranker.baselines.tables import RulePredictor, saved
from tailrace.ranker.censoring import QuantilesByScore, Sample, all_samples, quantiles
from tailrace.ranker.errors import DamagedRankerError
from tailrace.ranker.example import Example
from tailrace.ranker.methods import Method, Setting
from tailrace.ranker.prediction import Prediction

_NEWEST = 64  # samples of a prompt that count: older ones are another policy's
_LEAST_PRIOR, _MOST_PRIOR = 0.1, 100.0


class KnownPrompts(RulePredictor):
    """A predictor whose rule has a number for each prompt it has seen samples of, `known`, by digest.

    Args:
        method: what learned it.
        rule: a dataclass with the field `known`.
    """

    def __init__(self, method: Method, rule: Any) -> None:
        super().__init__(method, rule)
        self._known: dict[str, float] = rule.known

    def update(self, examples: Sequence[Example], setting: Setting) -> KnownPrompts:
        """Learn anew, and keep what is known of prompts that these examples lack."""
        fitted = self._method.fit(examples, setting)
        assert isinstance(fitted, KnownPrompts)
        return KnownPrompts(self._method, replace(fitted._rule, known={**self._known, **fitted._known}))  # type: ignore[type-var]  # a dataclass


def digest_of(prompt: str) -> str:
    """A prompt's name in a table: the table grows by prompts, not by their text."""
    return hashlib.blake2b(prompt.encode(errors="surrogatepass"), digest_size=12).hexdigest()


def samples_by_prompt(examples: Sequence[Example]) -> dict[str, list[Sample]]:
    """The samples of each prompt, by digest, those of older versions first."""
    found: dict[str, list[Sample]] = {}
    for example in sorted(examples, key=lambda example: example.version):
        found.setdefault(digest_of(example.prompt), []).extend(example.samples)
    return found


def check_table(table: Mapping[str, Any]) -> dict[str, float]:
    """A table of numbers by digest.

    Raises:
        DamagedRankerError: it is something else.
    """
    if not all(isinstance(value, int | float) for value in table.values()):
        raise DamagedRankerError("found a prompt without a number, expected a number for each")
    return {key: float(value) for key, value in table.items()}


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
        return KnownPrompts(self, _Estimates(estimates, overall, seen, list(quantiles(pooled))))

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> RulePredictor:
        """Read what `fit` learned."""
        del setting
        data = saved(files, known=dict, overall=float, quantiles=dict, pooled=list)
        by_score = QuantilesByScore.from_json(data["quantiles"].get("points"))
        return KnownPrompts(self, _Estimates(check_table(data["known"]), data["overall"], by_score, data["pooled"]))


def _prior(prompts: Sequence[Sequence[Sample]]) -> float:
    """w/b, from the one-way analysis of variance; 1 where no prompt has two samples."""
    groups = [[length for length, _ in samples] for samples in prompts if len(samples) > 1]
    if len(groups) < 2:
        return 1.0
    within = fmean(variance(group) for group in groups)
    between = variance([fmean(group) for group in groups]) - within / fmean(map(len, groups))
    return min(_MOST_PRIOR, max(_LEAST_PRIOR, within / between)) if between > 0 else _MOST_PRIOR


@dataclass(frozen=True, slots=True)
class _Estimates:
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
        return KnownPrompts(self, _LastLengths(last, seen, list(quantiles(pooled))))

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> RulePredictor:
        """Read what `fit` learned."""
        del setting
        data = saved(files, known=dict, quantiles=dict, pooled=list)
        by_score = QuantilesByScore.from_json(data["quantiles"].get("points"))
        return KnownPrompts(self, _LastLengths(check_table(data["known"]), by_score, data["pooled"]))


@dataclass(frozen=True, slots=True)
class _LastLengths:
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
