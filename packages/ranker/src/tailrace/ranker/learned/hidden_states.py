"""Trains the head of ``hidden`` on states of the policy, and predicts with both."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tailrace.ranker.errors import DamagedRankerError, RankerModelError, RankerOptionError
from tailrace.ranker.example import Example
from tailrace.ranker.learned.fitting import UPDATE_EPOCHS, UPDATE_RATE, Plan, fit_network
from tailrace.ranker.learned.network import Head, load_weights, padded, predictions_of, ranking_loss, saved_weights
from tailrace.ranker.learned.options import HiddenOptions
from tailrace.ranker.learned.pretrained import backbone_of
from tailrace.ranker.learned.samples import Samples, Scale
from tailrace.ranker.learned.text import TextCodec
from tailrace.ranker.methods import Deadline, Setting
from tailrace.ranker.prediction import Prediction
from tailrace.ranker.saved import from_json, to_json

_ABOUT, _WEIGHTS = "hidden.json", "weights.safetensors"
_ROWS_AT_ONCE = 32
_STATES_SHARE = 0.7  # of the time: a head trains in seconds once the states are there


class FrozenPolicy:
    """The model that generates the responses, read only. It is loaded when it is first needed.

    Args:
        directory: its directory; None if it is not known.
        most_tokens: of a prompt.
    """

    def __init__(self, directory: Path | None, most_tokens: int) -> None:
        self._directory, self._most_tokens = directory, most_tokens
        self._loaded: tuple[TextCodec, Any] | None = None

    def states(self, prompts: Sequence[str], deadline: Deadline | None = None) -> Tensor:
        """States [n, hidden] of the last tokens of the prompts.

        Args:
            prompts: n of them.
            deadline: after which no more are computed, so that there are fewer rows, in the prompts' order; at least one batch.

        Raises:
            RankerOptionError: the directory is not known.
            RankerModelError: it is no model directory.
        """
        codec, model = self._model()
        rows = codec.encode(prompts)
        found: list[Tensor] = []
        slowest = 0.0
        with torch.inference_mode():
            for first in range(0, len(rows), _ROWS_AT_ONCE):
                began = deadline.now() if deadline else 0.0
                if found and deadline and not deadline.allows(slowest):
                    break
                ids, there = padded(rows[first : first + _ROWS_AT_ONCE])
                inputs = {"input_ids": ids.to(model.device), "attention_mask": there.long().to(model.device)}
                states = model(**inputs, use_cache=False).last_hidden_state
                found.append(states[torch.arange(len(ids)), there.sum(1) - 1].float().cpu())
                slowest = max(slowest, deadline.now() - began if deadline else 0.0)
        return torch.cat(found).clone()

    def _model(self) -> tuple[TextCodec, Any]:
        if self._directory is None:
            raise RankerOptionError("found no policy, expected the directory of the model that generates the responses")
        if self._loaded is None:
            codec = TextCodec.of_model(self._directory, self._most_tokens)
            self._loaded = codec, backbone_of(self._directory)
        return self._loaded


class HiddenPredictor:
    """Predicts by a head on states of the policy.

    Args:
        method: its options.
        policy: gives the states.
        head: in evaluation mode.
        scale: of the outputs.
    """

    def __init__(self, method: HiddenOptions, policy: FrozenPolicy, head: Head, scale: Scale) -> None:
        self._method, self._policy, self._head, self._scale = method, policy, head, scale

    def predict(self, prompts: Sequence[str]) -> list[Prediction]:
        """One prediction for each prompt."""
        if not prompts:
            return []
        states = self._policy.states(prompts)
        if states.shape[1] != len(self._head.middle):
            raise RankerModelError(
                f"found a policy with states of {states.shape[1]} elements, expected {len(self._head.middle)}, as in training"
            )
        with torch.inference_mode():
            return predictions_of(self._head(states), self._scale)

    def update(self, examples: Sequence[Example], setting: Setting) -> HiddenPredictor:
        """A copy whose head was trained further, for a quarter of the epochs at 0.3 of the rate."""
        scale = self._scale.grown(examples)
        newer = HiddenPredictor(self._method, self._policy, copy.deepcopy(self._head), scale)
        states = self._policy.states([e.prompt for e in examples], setting.deadline.part(_STATES_SHARE))
        newer.learn(examples, states, setting, epochs=UPDATE_EPOCHS, rate=UPDATE_RATE)
        return newer

    def learn(
        self, examples: Sequence[Example], states: Tensor, setting: Setting, *, epochs: float = 1.0, rate: float = 1.0
    ) -> None:
        """Train the head in place, before anybody uses it, on the examples for which there are states.

        Args:
            examples: to learn from.
            states: [at most n, hidden].
            setting: seed and deadline.
            epochs, rate: parts of the method's.
        """
        method, known = self._method, examples[: len(states)]
        samples = Samples.of(known)
        drawn = torch.Generator().manual_seed(setting.seed + 1)

        def loss_of(chosen: Tensor, learning: bool) -> Tensor:
            draws = drawn if learning else torch.Generator().manual_seed(setting.seed)
            return ranking_loss(self._head(states[chosen]), samples[chosen], self._scale, method.loss, draws)

        plan = Plan("hidden", max(1, round(method.epochs * epochs)), method.batch, method.lr * rate)
        fit_network(self._head, [1] * len(known), loss_of, plan, setting)

    def files(self) -> dict[str, bytes]:
        """The head's weights, and what they are."""
        about = {"scale": asdict(self._scale), "inputs": len(self._head.middle)}
        return {_ABOUT: to_json(about), _WEIGHTS: saved_weights(self._head)}


def fit_hidden(method: HiddenOptions, examples: Sequence[Example], setting: Setting) -> HiddenPredictor:
    """Compute the states, and train the head."""
    policy = FrozenPolicy(setting.policy, method.most_tokens)
    states = policy.states([example.prompt for example in examples], setting.deadline.part(_STATES_SHARE))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setting.seed)
        head = Head(states.shape[1], method.width, method.dropout, states)
    predictor = HiddenPredictor(method, policy, head, Scale.of(examples))
    predictor.learn(examples, states, setting)
    return predictor


def restored(method: HiddenOptions, files: Mapping[str, bytes], setting: Setting) -> HiddenPredictor:
    """What `HiddenPredictor.files` wrote.

    Raises:
        DamagedRankerError: something else is there.
    """
    about = from_json(files, _ABOUT, "scale", "inputs")
    try:
        scale, head = Scale(**about["scale"]), Head(int(about["inputs"]), method.width, method.dropout)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DamagedRankerError(f"{_ABOUT}: found no head ({error}), expected what was saved") from error
    load_weights(head, files, _WEIGHTS)
    return HiddenPredictor(method, FrozenPolicy(setting.policy, method.most_tokens), head, scale)
