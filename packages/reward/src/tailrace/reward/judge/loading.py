"""Reads a judge's model and tokenizer, and says what they need before the weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tailrace.reward.errors import JudgeError, JudgeMemoryError
from tailrace.reward.judge.config import JudgeConfig
from tailrace.reward.judge.memory import ActivationShape, WeightSizes, residency_order
from tailrace.reward.judge.streaming import LayerStreamer, flat_bytes, tensor_bytes

_WORKSPACE_BYTES = 72 << 20  # what matrix multiplication keeps for itself on CUDA


def pick_device(name: str) -> torch.device:
    """The device of a name; ``auto`` takes CUDA if available.

    Raises:
        JudgeError: the name is unknown, or there is no such device.
    """
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError as error:
        raise JudgeError(f"found device = {name!r} of a judge, expected auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda") or (
        device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    ):
        raise JudgeError(f"found device = {name!r} of a judge and {torch.cuda.device_count()} CUDA devices")
    return device


def read_tokenizer(config: JudgeConfig) -> Any:
    """The model's tokenizer.

    Raises:
        JudgeError: it cannot be read, or it has no chat template and one is asked for.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(config.model, trust_remote_code=False)
    except Exception as error:
        raise JudgeError(f"found no readable tokenizer of the judge {config.model}: {_line(error)}") from error
    if config.chat and not tokenizer.chat_template:
        raise JudgeError(f"found no chat template in the tokenizer of the judge {config.model}, expected one for chat")
    return tokenizer


def answer_tokens(tokenizer: Any, config: JudgeConfig) -> tuple[int, int]:
    """The ids of the tokens for yes and no.

    Raises:
        JudgeError: a text is not exactly one known token, or both are the same.
    """
    found = []
    for name, text in (("yes", config.yes), ("no", config.no)):
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
            pieces = " ".join(repr(tokenizer.decode([token])) for token in ids) or "nothing"
            what = "an unknown token" if len(ids) == 1 else f"{len(ids)} tokens ({pieces:.80})"
            raise JudgeError(f"found {name} = {text!r}, which is {what} to {config.model}, expected exactly one token")
        found.append(ids[0])
    if found[0] == found[1]:
        raise JudgeError(f"found yes = {config.yes!r} and no = {config.no!r}, the same token, expected two")
    return found[0], found[1]


@dataclass(frozen=True, slots=True)
class JudgeModel:
    """A judge's model on its device.

    Args:
        model: the causal language model, in evaluation mode.
        device: where it computes.
        shape: what decides its activations; None without a budget.
        streamer: what streams its layers; None where all weights always fit.
        max_tokens: longest input.
    """

    model: Any
    device: torch.device
    shape: ActivationShape | None
    streamer: LayerStreamer | None
    max_tokens: int


def load_model(config: JudgeConfig) -> JudgeModel:
    """The model on its device, within the budget.

    Raises:
        JudgeError: the model cannot be read, or has no list of layers to stream.
        JudgeMemoryError: the budget does not hold two layers, what is no layer, and the longest input's activations. Said
            before the weights are read.
    """
    device = pick_device(config.device)
    described = _described(config)
    limit = getattr(described, "max_position_embeddings", None)
    max_tokens = min(value for value in (config.max_tokens, limit, 1 << 20) if value)
    if config.memory_bytes is None:
        try:
            model = _read(config).to(device)
        except torch.OutOfMemoryError as error:
            raise JudgeMemoryError(
                f"the judge {config.model} does not fit on {device}; memory_bytes lets its layers be streamed"
            ) from error
        return JudgeModel(model, device, None, None, max_tokens)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(described, dtype=_dtype(config, described.dtype))
    shape = decoder_shape(config, described, empty, device)
    slots = 2 if config.pipelined else 1
    outside, inside = _sizes(empty)
    order = residency_order(len(inside))
    other_bytes = outside + (_WORKSPACE_BYTES if device.type == "cuda" else 0)
    sizes = WeightSizes(other_bytes, tuple(inside[index] for index in order), slots)
    longest = shape.activation_bytes(1, max_tokens)
    if sizes.resident(config.memory_bytes, longest) is None:
        raise JudgeMemoryError(
            f"found memory_bytes = {config.memory_bytes:,} for the judge {config.model}, expected at least "
            f"{sizes.least_bytes(longest):,}: {min(slots, len(inside))} of {len(inside)} layers and what is no layer "
            f"{sizes.least_bytes(0):,}, activations of {max_tokens:,} tokens {longest:,}; a smaller max_tokens needs less"
        )
    model = _read(config)
    return JudgeModel(model, device, shape, _stream(model, device, config.pipelined, other_bytes), max_tokens)


def _stream(model: Any, device: torch.device, pipelined: bool, other_bytes: int) -> LayerStreamer:
    layers = decoder_layers(model)
    model.base_model.layers = torch.nn.ModuleList()  # all but the layers goes to the device
    model.to(device)
    model.base_model.layers = layers
    for buffer in layers.buffers():
        buffer.data = buffer.data.to(device)
    return LayerStreamer(list(layers), device, pipelined=pipelined, other_bytes=other_bytes)


def decoder_layers(model: Any) -> torch.nn.ModuleList:
    """The decoder's layers in order, where transformers keeps them in Llama, Mistral, Qwen2, Qwen3 and their like.

    Raises:
        JudgeError: there is no such list, or its layers share weights.
    """
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList) or len(layers) != model.config.num_hidden_layers:
        raise JudgeError(
            f"found a {type(model).__name__} without a list of its decoder's layers, expected one like Llama, Qwen2 or Qwen3; "
            "without memory_bytes it can be a judge"
        )
    inside = [id(parameter) for layer in layers for parameter in layer.parameters()]
    if len(set(inside)) < len(inside):
        raise JudgeError(f"found layers that share weights in a {type(model).__name__}, which cannot be streamed")
    return layers


def _sizes(model: Any) -> tuple[int, list[int]]:
    """Bytes of what is no layer, and of each layer."""
    layers = decoder_layers(model)
    inside = {id(parameter) for parameter in layers.parameters()}
    outside = [parameter for parameter in model.parameters() if id(parameter) not in inside]
    return tensor_bytes([*outside, *model.buffers()]), [flat_bytes(layer) for layer in layers]


def decoder_shape(config: JudgeConfig, described: Any, model: Any, device: torch.device) -> ActivationShape:
    """What decides the activations.

    Raises:
        JudgeError: the model is quantised, or a mixture of experts, whose activations depend on the tokens.
    """
    for key in ("quantization_config", "num_experts", "num_local_experts", "n_routed_experts"):
        if getattr(described, key, None):
            raise JudgeError(f"found {key} in the judge {config.model}; memory_bytes needs a plain, dense model")
    try:
        heads = described.num_attention_heads
        head_dim = getattr(described, "head_dim", None) or described.hidden_size // heads
        dtype = next(model.parameters()).dtype
        return ActivationShape(
            hidden=described.hidden_size,
            mlp=described.intermediate_size,
            query=heads * head_dim,
            key_value=(getattr(described, "num_key_value_heads", None) or heads) * head_dim,
            head_dim=head_dim,
            vocabulary=described.vocab_size,
            value_bytes=dtype.itemsize,
            window=getattr(described, "sliding_window", None),
            score_heads=heads if device.type == "cuda" and dtype == torch.float32 else 0,
        )
    except AttributeError as error:
        raise JudgeError(f"found no {error.name} in the configuration of the judge {config.model}") from error


def _described(config: JudgeConfig) -> Any:
    try:
        return AutoConfig.from_pretrained(config.model, trust_remote_code=False)
    except Exception as error:
        raise JudgeError(f"found no readable model {config.model} for a judge: {_line(error)}") from error


def _read(config: JudgeConfig) -> Any:
    try:
        model = AutoModelForCausalLM.from_pretrained(
            config.model, attn_implementation="sdpa", dtype=_dtype(config, "auto"), trust_remote_code=False
        )
    except Exception as error:
        raise JudgeError(f"found no readable causal language model {config.model}: {_line(error)}") from error
    return model.eval().requires_grad_(False)


def _dtype(config: JudgeConfig, own: Any) -> Any:
    return own if config.dtype == "auto" else getattr(torch, config.dtype)


def _line(error: BaseException) -> str:
    lines: Sequence[str] = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[0]:.200}" if lines else type(error).__name__
