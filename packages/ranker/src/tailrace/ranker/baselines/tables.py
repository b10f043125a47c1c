"""Methods whose predictor is one table in a JSON file, which learn anew from the recent examples at each update.

The baselines `random`, `prompt-length` and `family-mean` are here.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, ClassVar, Protocol

from tailrace.ranker.censoring import QuantilesByScore, all_samples, mean_tokens, quantiles
from tailrace.ranker.errors import DamagedRankerError
from tailrace.ranker.example import Example
from tailrace.ranker.features import words_of
from tailrace.ranker.methods import Method, Setting
from tailrace.ranker.prediction import Prediction
from tailrace.ranker.saved import from_json, to_json

FILE = "predictor.json"


class PromptRule(Protocol):
    """Predicts one prompt from plain data."""

    def __call__(self, prompt: str) -> Prediction:
        """The prediction."""
        ...

    def to_json(self) -> dict[str, Any]:
        """The plain data."""
        ...


class RulePredictor:
    """A predictor from a rule.

    Args:
        method: what learned it, and learns anew at an update.
        rule: what it learned.
    """

    def __init__(self, method: Method, rule: PromptRule) -> None:
        self._method, self._rule = method, rule

    def predict(self, prompts: Sequence[str]) -> list[Prediction]:
        return [self._rule(prompt) for prompt in prompts]

    def update(self, examples: Sequence[Example], setting: Setting) -> Any:
        return self._method.fit(examples, setting)

    def files(self) -> dict[str, bytes]:
        return {FILE: to_json(self._rule.to_json())}


def saved(files: Mapping[str, bytes], **kinds: type) -> dict[str, Any]:
    """The plain data of a rule, with these keys and types.

    Raises:
        DamagedRankerError: something else is there.
    """
    value = from_json(files, FILE, *kinds)
    for key, kind in kinds.items():
        if not isinstance(value[key], kind):
            raise DamagedRankerError(
                f"{FILE}: found {key} of type {type(value[key]).__name__}, expected {kind.__name__}"
            )
    return value


@dataclass(frozen=True, slots=True)
class Random:
    """Baseline ``random``: a score from a hash of seed and prompt, half to one and a half of the mean. Its recall is chance."""

    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = True

    def fit(self, examples: Sequence[Example], setting: Setting) -> RulePredictor:
        """Learn the quantiles of all lengths."""
        pooled = all_samples(examples)
        return RulePredictor(self, _RandomRule(setting.seed, mean_tokens(pooled), list(quantiles(pooled))))

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> RulePredictor:
        """Read what `fit` learned."""
        del setting
        data = saved(files, seed=int, mean=float, pooled=list)
        return RulePredictor(self, _RandomRule(data["seed"], data["mean"], data["pooled"]))


@dataclass(frozen=True, slots=True)
class _RandomRule:
    seed: int
    mean: float
    pooled: list[float]

    def __call__(self, prompt: str) -> Prediction:
        digest = hashlib.blake2b(f"{self.seed} {prompt}".encode(errors="surrogatepass"), digest_size=7).digest()
        return Prediction(self.pooled[0], self.pooled[1], self.mean * (0.5 + int.from_bytes(digest) / 2**56))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PromptLength:
    """Baseline ``prompt-length``: predicts characters of the prompt times the mean tokens per character over all responses."""

    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = True

    def fit(self, examples: Sequence[Example], setting: Setting) -> RulePredictor:
        """Learn the quantiles of the lengths of responses to prompts of similar length."""
        del setting
        characters = sum(len(example.prompt) * len(example.lengths) for example in examples)
        each = sum(sum(example.lengths) for example in examples) / max(1, characters)
        scores = [each * len(example.prompt) for example in examples]
        return RulePredictor(
            self, _LengthRule(each, QuantilesByScore.fit(scores, [example.samples for example in examples]))
        )

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> RulePredictor:
        """Read what `fit` learned."""
        del setting
        data = saved(files, tokens_per_character=float, points=list)
        return RulePredictor(
            self, _LengthRule(data["tokens_per_character"], QuantilesByScore.from_json(data["points"]))
        )


@dataclass(frozen=True, slots=True)
class _LengthRule:
    tokens_per_character: float
    quantiles: QuantilesByScore

    def __call__(self, prompt: str) -> Prediction:
        return self.quantiles(self.tokens_per_character * len(prompt))

    def to_json(self) -> dict[str, Any]:
        return {"tokens_per_character": self.tokens_per_character, "points": self.quantiles.points}


_MOST_WORDS = 5000
_PRIOR_SAMPLES = 4  # a family's mean counts as if so many samples of the mean of all belonged to it


@dataclass(frozen=True, slots=True)
class FamilyMean:
    """Baseline ``family-mean``: ranks by the mean length of the prompt's family, which its words tell.

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
        return RulePredictor(self, _FamilyRule(families))

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> RulePredictor:
        """Read what `fit` learned."""
        del setting
        families = saved(files, families=dict)["families"]
        try:
            rule = _FamilyRule(families)
            for each in families.values():
                p50, p90 = each["quantiles"]
                Prediction(p50, p90, each["mean"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DamagedRankerError(f"found families that are none ({error}), expected what was saved") from error
        return RulePredictor(self, rule)


def _prompts_with(examples: Sequence[Example]) -> Counter[str]:
    """For each word the number of prompts that have it."""
    return Counter(word for example in examples for word in set(words_of(example.prompt)))


class _FamilyRule:
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
