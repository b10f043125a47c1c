"""Trains the transformer of ``encoder``, and predicts with it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from tailrace.ranker.errors import DamagedRankerError
from tailrace.ranker.example import Example
from tailrace.ranker.features import COUNT, features_of
from tailrace.ranker.learned.fitting import Plan, fit_network
from tailrace.ranker.learned.network import Bidirectional, Causal, Reader, padded
from tailrace.ranker.learned.options import EncoderOptions
from tailrace.ranker.learned.outputs import load_weights, predictions_of, ranking_loss, saved_weights
from tailrace.ranker.learned.pretrained import backbone_of, build_backbone, configuration
from tailrace.ranker.learned.samples import Samples, Scale
from tailrace.ranker.learned.text import TextCodec
from tailrace.ranker.methods import Setting
from tailrace.ranker.prediction import Prediction
from tailrace.ranker.saved import file_of, from_json, to_json

_ABOUT, _TOKENIZER, _WEIGHTS = "encoder.json", "tokenizer.json", "weights.safetensors"
_ROWS_AT_ONCE = 64
_UPDATE_EPOCHS, _UPDATE_RATE = 0.25, 0.3  # of those of training


class EncoderPredictor:
    """Predicts by a trained transformer.

    Args:
        method: its options.
        network: the transformer with its head, in evaluation mode.
        codec: encodes prompts.
        scale: of the outputs.
        pretrained: the configuration of the model that training began with; None for one of the method's shape.
    """

    def __init__(
        self, method: EncoderOptions, network: Reader, codec: TextCodec, scale: Scale, pretrained: dict[str, Any] | None
    ) -> None:
        self._method, self._network, self._codec = method, network, codec
        self._scale, self._pretrained = scale, pretrained

    def predict(self, prompts: Sequence[str]) -> list[Prediction]:
        """One prediction for each prompt."""
        rows = self._codec.encode(prompts) if prompts else []
        order = sorted(range(len(rows)), key=lambda at: len(rows[at]))  # batches without much padding
        found: dict[int, Prediction] = {}
        with torch.inference_mode():
            for first in range(0, len(order), _ROWS_AT_ONCE):
                part = order[first : first + _ROWS_AT_ONCE]
                ids, there = padded([rows[at] for at in part])
                outputs = self._network(ids, there, _features([prompts[at] for at in part]))
                found.update(zip(part, predictions_of(outputs, self._scale), strict=True))
        return [found[at] for at in range(len(rows))]

    def update(self, examples: Sequence[Example], setting: Setting) -> EncoderPredictor:
        """A copy that was trained further, for a quarter of the epochs at 0.3 of the rate."""
        newer = EncoderPredictor(
            self._method, copy.deepcopy(self._network), self._codec, self._scale.grown(examples), self._pretrained
        )
        newer.learn(examples, setting, epochs=_UPDATE_EPOCHS, rate=_UPDATE_RATE)
        return newer

    def learn(self, examples: Sequence[Example], setting: Setting, *, epochs: float = 1.0, rate: float = 1.0) -> None:
        """Train in place, before anybody uses it.

        Args:
            examples: to learn from.
            setting: seed and deadline.
            epochs, rate: parts of the method's.
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
            return ranking_loss(outputs, samples[chosen], self._scale, method.loss, draws)

        lr = (method.lr if self._pretrained is None else method.init_lr) * rate
        plan = Plan("encoder", max(1, round(method.epochs * epochs)), method.batch, lr)
        fit_network(self._network, len(examples), loss_of, plan, setting)

    def files(self) -> dict[str, bytes]:
        """The weights, the tokenizer, and what they are."""
        about = {"scale": asdict(self._scale), "pretrained": self._pretrained, "vocabulary": self._codec.size}
        return {
            _ABOUT: to_json(about),
            _TOKENIZER: self._codec.content(),
            _WEIGHTS: saved_weights(self._network),
        }


def fit_encoder(method: EncoderOptions, examples: Sequence[Example], setting: Setting) -> EncoderPredictor:
    """Build a network and train it.

    Raises:
        RankerModelError: `Setting.init` is no model directory.
    """
    prompts = [example.prompt for example in examples]
    features = _features(prompts)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setting.seed)
        if setting.init is None:
            codec = TextCodec.trained(prompts, vocabulary=method.vocabulary, most_tokens=method.most_tokens)
            backbone: Bidirectional | Causal = _own(method, codec.size)
            pretrained = None
        else:
            codec = TextCodec.of_model(setting.init, method.most_tokens)
            model = backbone_of(setting.init)
            backbone, pretrained = Causal(model), configuration(model)
        network = Reader(backbone, features, method.dropout)
    network.to(next(backbone.parameters()).device)
    predictor = EncoderPredictor(method, network, codec, Scale.of(examples), pretrained)
    predictor.learn(examples, setting)
    return predictor


def restored(method: EncoderOptions, files: Mapping[str, bytes]) -> EncoderPredictor:
    """What `EncoderPredictor.files` wrote.

    Raises:
        DamagedRankerError: something else is there.
    """
    about = from_json(files, _ABOUT, "scale", "pretrained", "vocabulary")
    try:
        scale = Scale(**about["scale"])
        if about["pretrained"] is None:
            backbone: Bidirectional | Causal = _own(method, int(about["vocabulary"]))
        else:
            backbone = Causal(build_backbone(about["pretrained"]))
    except (TypeError, ValueError) as error:
        raise DamagedRankerError(f"{_ABOUT}: found no encoder ({error}), expected what was saved") from error
    network = Reader(backbone, torch.zeros(1, COUNT), method.dropout).to(next(backbone.parameters()).device)
    load_weights(network, files, _WEIGHTS)
    codec = TextCodec.restored(file_of(files, _TOKENIZER), method.most_tokens)
    return EncoderPredictor(method, network, codec, scale, about["pretrained"])


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
