"""Trains the transformer of ``encoder``, or a head of ``sft`` on a given model's states, and predicts with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

import torch
from torch import Tensor

from tailrace.ranker.errors import DamagedRankerError, RankerError
from tailrace.ranker.example import Example
from tailrace.ranker.features import COUNT, features_of
from tailrace.ranker.learned.fitting import UPDATE_EPOCHS, UPDATE_RATE, Plan, by_parts, fit_network
from tailrace.ranker.learned.network import (
    Bidirectional,
    Causal,
    Loss,
    Reader,
    load_weights,
    padded,
    predictions_of,
    ranking_loss,
    saved_weights,
)
from tailrace.ranker.learned.options import EncoderOptions, SftOptions
from tailrace.ranker.learned.pretrained import (
    Tuning,
    build_backbone,
    check_time,
    copied,
    described,
    is_base,
    plan_of,
)
from tailrace.ranker.learned.samples import Samples, Scale
from tailrace.ranker.learned.text import TextCodec
from tailrace.ranker.methods import Setting
from tailrace.ranker.prediction import Prediction
from tailrace.ranker.saved import file_of, from_json, to_json

ABOUT, _TOKENIZER, _WEIGHTS = "encoder.json", "tokenizer.json", "weights.safetensors"
_HEAD_DROPOUT = 0.1  # of a head on a given model


class EncoderPredictor:
    """Predicts by a trained transformer.

    Args:
        method: its options; those of ``sft`` for a given model with a head.
        network: the transformer with its head, in evaluation mode.
        codec: encodes prompts.
        scale: of the outputs.
        tuning: how a given model learns; None for one of the method's shape.
    """

    def __init__(
        self,
        method: EncoderOptions | SftOptions,
        network: Reader,
        codec: TextCodec,
        scale: Scale,
        tuning: Tuning | None,
    ) -> None:
        self._method, self._network, self._codec = method, network, codec
        self._scale, self._tuning = scale, tuning

    def predict(self, prompts: Sequence[str]) -> list[Prediction]:
        """One prediction for each prompt."""
        rows = self._codec.encode(prompts) if prompts else []

        def of_part(part: list[int]) -> list[Prediction]:
            ids, there = padded([rows[at] for at in part])
            return predictions_of(self._network(ids, there, _features([prompts[at] for at in part])), self._scale)

        return by_parts(rows, self._method.batch_tokens, of_part)

    def update(self, examples: Sequence[Example], setting: Setting) -> EncoderPredictor:
        """A copy that was trained further, for a quarter of the epochs at 0.3 of the rate."""
        newer = EncoderPredictor(
            self._method, copied(self._network), self._codec, self._scale.grown(examples), self._tuning
        )
        newer.learn(examples, setting, epochs=UPDATE_EPOCHS, rate=UPDATE_RATE)
        return newer

    def learn(self, examples: Sequence[Example], setting: Setting, *, epochs: float = 1.0, rate: float = 1.0) -> None:
        """Train in place, before anybody uses it.

        Args:
            examples: to learn from.
            setting: seed and deadline.
            epochs, rate: parts of the method's.

        Raises:
            RankerOptionError: a given model is to be trained for the first time, and there is no time for one step.
        """
        method = self._method
        rows = self._codec.encode([example.prompt for example in examples])
        features = _features([example.prompt for example in examples])
        samples = Samples.of(examples)
        drawn = torch.Generator().manual_seed(setting.seed + 1)

        def loss_of(chosen: Tensor, learning: bool) -> Tensor:
            ids, there = padded([rows[at] for at in chosen.tolist()])
            outputs = self._network(ids, there, features[chosen])
            # Looks at the held-back loss draw the same samples each time.
            draws = drawn if learning else torch.Generator().manual_seed(setting.seed)
            return ranking_loss(outputs, samples[chosen], self._scale, loss, draws)

        if isinstance(method, SftOptions):
            loss = cast("Loss", method.objective)
            plan = plan_of(method, self._tuning is not None, epochs, rate)
        else:
            loss = method.loss
            passes = max(1, round(method.epochs * epochs))
            plan = Plan("encoder", passes, method.batch, method.lr * rate, batch_tokens=method.batch_tokens)
        sizes = [len(row) for row in rows]
        if self._tuning is not None and epochs == 1.0:
            check_time(self._network, sizes, loss_of, plan, setting)
        fit_network(self._network, sizes, loss_of, plan, setting)

    def files(self) -> dict[str, bytes]:
        """The weights, the tokenizer, and what they are; of adapters those alone."""
        about = {
            "scale": asdict(self._scale),
            "vocabulary": self._codec.size,
            **described(self._tuning, self._backbone),
        }
        return {
            ABOUT: to_json(about),
            _TOKENIZER: self._codec.content(),
            _WEIGHTS: saved_weights(self._network),
        }

    @property
    def _backbone(self) -> Any:
        return self._network.backbone.model if self._tuning is not None else None


def fit_encoder(method: EncoderOptions, examples: Sequence[Example], setting: Setting) -> EncoderPredictor:
    """Build a network and train it."""
    prompts = [example.prompt for example in examples]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setting.seed)
        codec = TextCodec.trained(prompts, vocabulary=method.vocabulary, most_tokens=method.most_tokens)
        network = Reader(_own(method, codec.size), _features(prompts), method.dropout)
    predictor = EncoderPredictor(method, network, codec, Scale.of(examples), None)
    predictor.learn(examples, setting)
    return predictor


def fit_reader(method: SftOptions, examples: Sequence[Example], setting: Setting) -> EncoderPredictor:
    """Load a model, put a head on its states, and train both.

    Raises:
        RankerOptionError: there is no time for one step, or no model is given.
        RankerModelError: `Setting.init` is no model directory.
        MissingExtraError: PEFT is not installed, and there are to be adapters.
    """
    tuning = Tuning(method, setting.init, setting.seed)
    codec = TextCodec.of_model(tuning.known_directory, method.most_tokens)
    network = _reader(tuning, tuning.backbone(), _features([example.prompt for example in examples]), setting.seed)
    predictor = EncoderPredictor(method, network, codec, Scale.of(examples), tuning)
    predictor.learn(examples, setting)
    return predictor


def restored(method: EncoderOptions | SftOptions, files: Mapping[str, bytes], setting: Setting) -> EncoderPredictor:
    """What `EncoderPredictor.files` wrote.

    Raises:
        DamagedRankerError: something else is there.
        RankerModelError: the model that its adapters are of is not at `Setting.init`.
    """
    about = from_json(files, ABOUT, "scale", "pretrained", "base", "vocabulary")
    features = torch.zeros(1, COUNT)
    tuning = None
    try:
        scale = Scale(**about["scale"])
        if isinstance(method, SftOptions):
            tuning = Tuning(method, setting.init, setting.seed)
            model = tuning.backbone() if is_base(tuning, about["base"]) else build_backbone(about["pretrained"])
            network = _reader(tuning, model, features, setting.seed)
        else:
            network = Reader(_own(method, int(about["vocabulary"])), features, method.dropout)
    except (TypeError, ValueError) as error:
        if isinstance(error, RankerError):
            raise
        raise DamagedRankerError(f"{ABOUT}: found no encoder ({error}), expected what was saved") from error
    load_weights(network, files, _WEIGHTS)
    codec = TextCodec.restored(file_of(files, _TOKENIZER), method.most_tokens)
    return EncoderPredictor(method, network, codec, scale, tuning)


def _reader(tuning: Tuning, model: Any, features: Tensor, seed: int) -> Reader:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Reader(Causal(model, tuning.computing), features, _HEAD_DROPOUT)
    network.to(model.device)
    return network


def _own(method: EncoderOptions, vocabulary: int) -> Bidirectional:
    return Bidirectional(
        vocabulary=vocabulary,
        most_tokens=method.most_tokens,
        width=method.width,
        layers=method.layers,
        heads=method.heads,
        mlp=method.mlp,
        dropout=method.dropout,
    )


def _features(prompts: Sequence[str]) -> Tensor:
    return torch.tensor([features_of(prompt) for prompt in prompts], dtype=torch.float32).reshape(len(prompts), COUNT)
