"""Options of the learned methods, with which their training and their predicting is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from tailrace.contracts.errors import expected_one_of
from tailrace.ranker.errors import RankerOptionError

Objective = Literal["write", "quantiles", "pairwise", "listmle"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
"""What a language model can learn: to write the length, to regress its quantiles, or beside them the order of prompts."""

LARGE_PARAMETERS = 50_000_000
"""Weights of a given model above which ``activation_checkpointing = "auto"`` computes its layers again."""
LARGE_BYTES = 100_000_000
"""Bytes of a given model's files above which ``dtype = "auto"`` is bfloat16 on a CPU that multiplies in it."""


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """Options of ``encoder``.

    Args:
        width, layers, heads, mlp, dropout: the shape.
        vocabulary: most tokens of the encoding.
        most_tokens: of a prompt; of a longer one the first and the last are read.
        loss: ``"pairwise"`` (RankNet), ``"listmle"``, or ``"quantiles"`` for these alone.
        epochs: most passes over the prompts.
        batch: prompts of a step.
        batch_tokens: most tokens, padding included, that are computed at once; a step of more adds up gradients of parts.
        lr: highest learning rate.

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
    loss: Literal["quantiles", "pairwise", "listmle"] = "pairwise"
    epochs: int = 12
    batch: int = 16
    batch_tokens: int = 65_536
    lr: float = 1e-3

    def __post_init__(self) -> None:
        _check(self, "width", "layers", "heads", "mlp", "epochs", "batch", "batch_tokens", "lr")
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
    loss: Literal["quantiles", "pairwise", "listmle"] = "pairwise"
    epochs: int = 60
    batch: int = 64
    lr: float = 2e-3

    def __post_init__(self) -> None:
        _check(self, "width", "epochs", "batch", "lr")


@dataclass(frozen=True, slots=True)
class SftOptions:
    """Options of ``sft``.

    Args:
        objective: what is learned. ``"write"``: the digits of the length (StreamRL, section 5.2). The others put a head on the
            states of the prompt: ``"quantiles"`` regresses five quantiles, ``"pairwise"`` (RankNet) and ``"listmle"`` (as
            vllm-ltr, arXiv:2408.15792) learn the order beside them. ``"auto"``: of a given model the one with the best
            recall20 on prompts held back, among ``write``, ``quantiles`` and ``pairwise``; from scratch ``write``.
        width, layers, heads, mlp: the shape of a model from scratch. Keys and values have half the heads.
        vocabulary, most_tokens, batch, batch_tokens, lr: see `EncoderOptions`.
        epochs: most passes over the prompts; in each a prompt comes with one of its samples.
        steps: most steps of a training; 0: as many as the epochs have. An update takes a quarter of them.
        lora_rank: of the adapters of a given model (LoRA, arXiv:2106.09685) in all its linear layers; 0: all its weights learn.
        lora_alpha: what adapters add is scaled by alpha / rank.
        dtype: in which a given model computes; auto: bfloat16 on a GPU, and on a CPU that multiplies in it (AVX512-BF16, AMX)
            if adapters learn and the model's files have more than 100 MB; else float32. What learns is float32.
        activation_checkpointing: whether layers of a given model keep only their inputs for the backward pass and compute the
            rest again, which takes a third more time; auto: in models of more than 50 million parameters.
        init_lr: highest learning rate of a given model; None: 3e-4 of adapters, 3e-5 of all weights.
        head_lr: that of a head, times `init_lr`: it begins with nothing.

    Raises:
        RankerOptionError: a value is outside its range.
    """

    objective: Literal["auto", "write", "quantiles", "pairwise", "listmle"] = "auto"
    width: int = 128
    layers: int = 4
    heads: int = 4
    mlp: int = 384
    vocabulary: int = 2048
    most_tokens: int = 512
    epochs: int = 12
    steps: int = 0
    batch: int = 16
    batch_tokens: int = 8192
    lr: float = 2e-3
    lora_rank: int = 16
    lora_alpha: float = 32.0
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    activation_checkpointing: Literal["auto", "on", "off"] = "auto"
    init_lr: float | None = None
    head_lr: float = 3.0

    def __post_init__(self) -> None:
        above_zero = (
            "width",
            "layers",
            "heads",
            "mlp",
            "epochs",
            "batch",
            "batch_tokens",
            "lr",
            "lora_alpha",
            "head_lr",
        )
        _check(self, *above_zero, *(() if self.init_lr is None else ("init_lr",)))
        for name in ("steps", "lora_rank"):
            if getattr(self, name) < 0:
                raise RankerOptionError(f"found {name} = {getattr(self, name)}, expected 0 or more")
        for name, known in (
            ("objective", ("auto", *OBJECTIVES)),
            ("dtype", ("auto", "float32", "bfloat16")),
            ("activation_checkpointing", ("auto", "on", "off")),
        ):
            if getattr(self, name) not in known:
                raise RankerOptionError(
                    f"found {name} = {getattr(self, name)!r}, {expected_one_of(getattr(self, name), known)}"
                )
        if self.heads % 2 or self.width % self.heads:
            raise RankerOptionError(
                f"found width = {self.width} and heads = {self.heads}, expected a multiple of an even number"
            )

    @property
    def rate(self) -> float:
        """The highest learning rate of a given model."""
        return self.init_lr or (3e-4 if self.lora_rank else 3e-5)


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
    if (loss := getattr(options, "loss", "pairwise")) not in OBJECTIVES[1:]:
        raise RankerOptionError(f"found loss = {loss!r}, {expected_one_of(loss, OBJECTIVES[1:])}")
