"""Options of the learned methods, with which their training and their predicting is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tailrace.ranker.errors import RankerOptionError


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """Options of ``encoder``.

    Args:
        width, layers, heads, mlp, dropout: the shape.
        vocabulary: most tokens of the encoding.
        most_tokens: of a prompt; of a longer one the first and the last are read.
        loss: ``"pairwise"`` (RankNet) or ``"listmle"``.
        epochs: most passes over the prompts.
        batch: prompts of a step.
        lr: highest learning rate.
        init_lr: that of a pretrained model.

    Raises:
        RankerOptionError: a value is outside its range.
    """

    width: int = 128
    layers: int = 4
    heads: int = 4
    mlp: int = 512
    dropout: float = 0.1
    vocabulary: int = 2048
    most_tokens: int = 512
    loss: Literal["pairwise", "listmle"] = "pairwise"
    epochs: int = 12
    batch: int = 16
    lr: float = 1e-3
    init_lr: float = 3e-5

    def __post_init__(self) -> None:
        _check(self, "width", "layers", "heads", "mlp", "epochs", "batch", "lr", "init_lr")
        if self.width % self.heads:
            raise RankerOptionError(f"found width = {self.width} and heads = {self.heads}, expected a multiple")


@dataclass(frozen=True, slots=True)
class HiddenOptions:
    """Options of ``hidden``.

    Args:
        width: of the layer between the state and the outputs.
        dropout: before each layer.
        most_tokens, loss: see `EncoderOptions`.
        epochs: most passes over the states.
        batch: prompts of a step.
        lr: highest learning rate.

    Raises:
        RankerOptionError: a value is outside its range.
    """

    width: int = 64
    dropout: float = 0.1
    most_tokens: int = 1024
    loss: Literal["pairwise", "listmle"] = "pairwise"
    epochs: int = 60
    batch: int = 64
    lr: float = 2e-3

    def __post_init__(self) -> None:
        _check(self, "width", "epochs", "batch", "lr")


@dataclass(frozen=True, slots=True)
class SftOptions:
    """Options of ``sft``.

    Args:
        width, layers, heads, mlp: the shape. Keys and values have half the heads.
        vocabulary, most_tokens, batch, lr, init_lr: see `EncoderOptions`.
        epochs: most passes over the prompts; in each a prompt comes with one of its samples.

    Raises:
        RankerOptionError: a value is outside its range.
    """

    width: int = 128
    layers: int = 4
    heads: int = 4
    mlp: int = 384
    vocabulary: int = 2048
    most_tokens: int = 512
    epochs: int = 12
    batch: int = 16
    lr: float = 2e-3
    init_lr: float = 3e-5

    def __post_init__(self) -> None:
        _check(self, "width", "layers", "heads", "mlp", "epochs", "batch", "lr", "init_lr")
        if self.heads % 2 or self.width % self.heads:
            raise RankerOptionError(
                f"found width = {self.width} and heads = {self.heads}, expected a multiple of an even number"
            )


def _check(options: Any, *above_zero: str) -> None:
    """Check the ranges of what the methods have alike; a method without dropout, vocabulary or loss passes there."""
    for name in above_zero:
        if not getattr(options, name) > 0:
            raise RankerOptionError(f"found {name} = {getattr(options, name)!r}, expected more than 0")
    if not 0 <= (dropout := getattr(options, "dropout", 0.0)) < 1:
        raise RankerOptionError(f"found dropout = {dropout!r}, expected 0 <= dropout < 1")
    if (vocabulary := getattr(options, "vocabulary", 257)) < 257:
        raise RankerOptionError(f"found vocabulary = {vocabulary}, expected at least 257: all bytes and a start")
    if options.most_tokens < 8:
        raise RankerOptionError(f"found most_tokens = {options.most_tokens}, expected at least 8")
    if (loss := getattr(options, "loss", "pairwise")) not in ("pairwise", "listmle"):
        raise RankerOptionError(f"found loss = {loss!r}, expected pairwise or listmle")
