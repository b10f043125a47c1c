"""The baseline ``family-mean``: the mean length of the prompt's family, which its words tell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

from tailrace.ranker.baselines.table import RulePredictor, saved
from tailrace.ranker.censoring import all_samples, quantiles
from tailrace.ranker.errors import DamagedRankerError
from tailrace.ranker.example import Example
from tailrace.ranker.features import words_of
from tailrace.ranker.methods import Setting
from tailrace.ranker.prediction import Prediction

_MOST_WORDS = 5000
_PRIOR_SAMPLES = 4  # a family's mean counts as if so many samples of the mean of all belonged to it


@dataclass(frozen=True, slots=True)
class FamilyMean:
    """Ranks by the mean length of the family.

    A prompt to predict is only text, so its family is the most probable one by its words (naive Bayes). Without families among
    the examples all prompts are of one, and all scores are equal.
    """

    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = True

    def fit(self, examples: Sequence[Example], setting: Setting) -> RulePredictor:
        """Learn each family's words and lengths."""
        del setting
        members: dict[str, list[Example]] = {}
        for example in examples:
            members.setdefault(example.family, []).append(example)
        overall = fmean(length for length, _ in all_samples(examples))
        counts = {family: _prompts_with(each) for family, each in members.items()}
        vocabulary = {word for word, _ in sum(counts.values(), Counter[str]()).most_common(_MOST_WORDS)}
        families = {}
        for family, each in sorted(members.items()):
            samples = all_samples(each)
            total = sum(length for length, _ in samples) + _PRIOR_SAMPLES * overall
            families[family] = {
                "prompts": len(each),
                "words": {word: count for word, count in sorted(counts[family].items()) if word in vocabulary},
                "mean": total / (len(samples) + _PRIOR_SAMPLES),
                "quantiles": list(quantiles(samples)),
            }
        return RulePredictor(self, _Rule(families))

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> RulePredictor:
        """Read what `fit` learned."""
        del setting
        families = saved(files, families=dict)["families"]
        try:
            rule = _Rule(families)
            for each in families.values():
                p50, p90 = each["quantiles"]
                Prediction(p50, p90, each["mean"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DamagedRankerError(f"found families that are none ({error}), expected what was saved") from error
        return RulePredictor(self, rule)


def _prompts_with(examples: Sequence[Example]) -> Counter[str]:
    """For each word the number of prompts that have it."""
    return Counter(word for example in examples for word in set(words_of(example.prompt)))


class _Rule:
    """Naive Bayes over which words a prompt has (multinomial over different words, Laplace's rule)."""

    def __init__(self, families: dict[str, Any]) -> None:
        self._families = families
        vocabulary = {word for each in families.values() for word in each["words"]}
        prompts = sum(each["prompts"] for each in families.values())
        self._vocabulary = vocabulary
        self._logs: dict[str, tuple[float, dict[str, float], float]] = {}
        for name, each in families.items():
            total = sum(each["words"].values()) + len(vocabulary) + 1
            logs = {word: math.log((count + 1) / total) for word, count in each["words"].items()}
            self._logs[name] = math.log(each["prompts"] / prompts), logs, math.log(1 / total)

    def __call__(self, prompt: str) -> Prediction:
        known = sorted(set(words_of(prompt)) & self._vocabulary)

        def log_probability(name: str) -> float:
            prior, logs, unseen = self._logs[name]
            return prior + math.fsum(logs.get(word, unseen) for word in known)

        family = self._families[max(sorted(self._families), key=log_probability)]
        p50, p90 = family["quantiles"]
        return Prediction(p50, p90, family["mean"])

    def to_json(self) -> dict[str, Any]:
        return {"families": self._families}
