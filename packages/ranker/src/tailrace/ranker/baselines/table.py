"""Methods whose predictor is one JSON file, which learn anew from the recent examples at each update."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tailrace.ranker.censoring import Sample
from tailrace.ranker.errors import DamagedRankerError
from tailrace.ranker.example import Example
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
