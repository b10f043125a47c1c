"""Methods whose predictor is one JSON file, which learn anew from the recent examples at each update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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
