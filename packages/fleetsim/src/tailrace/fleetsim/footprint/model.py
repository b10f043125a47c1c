"""What is known of a run's model before it is loaded: its shape, and how many parameters it has."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass

from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware import ModelShape, models, shape_of
from tailrace.pipeline.config.models import RunConfig, SmallModelConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.model_check import count_parameters
from tailrace.trainer.memory import DenseModel

_SMALL_VOCABULARY = 1024


@dataclass(frozen=True, slots=True)
class RunModel:
    """A run's model.

    Args:
        name: the directory's name, or a word for one that the run builds itself.
        parameters: how many it has; 0 if that is not known.
        shape: its shape; None of an architecture that is not counted.
        dense: the same as the trainer's arithmetic reads it, a mixture of experts too.
    """

    name: str
    parameters: int
    shape: ModelShape | None
    dense: DenseModel | None


def run_model(config: RunConfig, *, on_paper: bool = False) -> RunModel:
    """The model of a configuration.

    Args:
        on_paper: where its directory is missing, a model of the simulator's table that has the directory's name is taken.

    Raises:
        FleetError: its config.json is damaged, or, on paper, neither the directory nor the name is known.
    """
    path = config.model.path
    if path is None:
        shape = _small(config.model.small or SmallModelConfig(), config)
        return RunModel("a small Qwen3", shape.params, shape, dense(shape))
    name = path.name
    if not path.is_dir():
        if on_paper and name in models():
            shape = models()[name]
            return RunModel(name, shape.params, shape, dense(shape))
        if on_paper:
            raise FleetError(
                f"key 'model.path': found no directory {str(path)!r}, and {name!r} is none of the known models "
                f"({', '.join(models())}), expected one of them, or a Hugging Face model directory"
            )
        return RunModel(name, 0, None, None)
    with contextlib.suppress(OSError, ValueError):  # the check of the model's files reports what is damaged
        content = json.loads((path / "config.json").read_text(encoding="utf-8"))
        if (found := shape_of(name, content)) is not None:
            return RunModel(name, found.params, found, dense(found))
    try:
        return RunModel(name, count_parameters(path), None, None)
    except ConfigError:
        return RunModel(name, 0, None, None)


def dense(shape: ModelShape) -> DenseModel:
    """The shape as the trainer's arithmetic reads it."""
    found = DenseModel(
        hidden=shape.hidden,
        layers=shape.layers,
        heads=shape.query_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        mlp=shape.ffn,
        vocabulary=shape.vocab,
        tied=shape.tied,
        head_norms=shape.head_norm,
        biases=shape.qkv_bias,
    )
    return found.mixture(shape.experts, shape.experts_per_token) if shape.experts else found


def _small(small: SmallModelConfig, config: RunConfig) -> ModelShape:
    vocabulary = config.model.tokenizer.get("vocab_size", _SMALL_VOCABULARY)
    return ModelShape(
        "a small Qwen3",
        layers=small.layers,
        hidden=small.hidden,
        ffn=small.mlp,
        query_heads=small.heads,
        kv_heads=small.kv_heads,
        head_dim=small.head_dim,
        vocab=vocabulary if isinstance(vocabulary, int) else _SMALL_VOCABULARY,
        head_norm=True,
        tied=True,
    )
