"""LoRA adapters (arXiv:2106.09685): which layers get them, their names and files as PEFT has them, and what merges them.

    base W, frozen ──► y = W x + alpha / rank B A x ──► A and B alone are trained, saved, published ──► W + alpha / rank B A

Importing it needs neither torch nor PEFT.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.contracts import extra, need_extra
from tailrace.trainer.config import ALL_LINEAR, AdapterConfig
from tailrace.trainer.errors import AdapterError, TrainerConfigError
from tailrace.trainer.weights_file import tensor_shapes

if TYPE_CHECKING:
    from torch import Tensor

    from tailrace.trainer.microbatch import MicroBatch

ADAPTER_CONFIG = "adapter_config.json"
_NAME = "default"
_PREFIX = "base_model.model."
_SIDES = {".lora_A.weight": 0, ".lora_B.weight": 1}
_NO_TARGETS = ("embed", "wte", "wpe", "lm_head", "norm")
_EXPERTS = re.compile(r"(?P<mixture>.*)\.experts\.")
_ROUTERS = ("gate", "router")
QWEN_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of Qwen and Llama."""


def check_adapter(config: AdapterConfig, model: Path | None) -> Sequence[str]:
    """Check before a run starts that its model has the layers that are to get adapters, and that PEFT is there.

    Args:
        config: the adapter's settings.
        model: the model's directory; None: the small Qwen3 that a run builds.

    Returns:
        The last names of the layers that get one; none without an adapter.

    Raises:
        TrainerConfigError: the model lacks a target, or is an adapter itself.
        MissingExtraError: PEFT is not installed.
        CheckpointError: the model's files cannot be read.
    """
    if not config.rank:
        return ()
    need_extra("tailrace-trainer", "adapters", "peft")
    has = QWEN_TARGETS if model is None else linear_layers(model)
    if config.targets == ALL_LINEAR:
        return has
    _check_targets(config.targets, has)
    return tuple(config.targets)


def _check_targets(targets: Iterable[str], has: Sequence[str]) -> None:
    if lacking := [target for target in targets if target not in has]:
        raise TrainerConfigError(
            f"found adapter targets {', '.join(lacking)}, which the model lacks; expected {ALL_LINEAR!r}, or some of "
            f"{', '.join(has)}"
        )


def linear_layers(model: Path) -> tuple[str, ...]:
    """The last names of a model directory's linear layers, from the shapes of its weights; no embeddings, no output layer.

    The experts of a layer are one parameter in transformers, and the router beside them is a module of its own, so that neither
    is a linear layer.

    Raises:
        CheckpointError: its files cannot be read.
    """
    found = dict[str, None]()
    shapes = tensor_shapes(model)
    mixtures = {match["mixture"] for match in map(_EXPERTS.match, shapes) if match}
    for name, shape in shapes.items():
        layer, _, kind = name.rpartition(".")
        inside, _, last = layer.rpartition(".")
        of_mixture = _EXPERTS.match(name) is not None or (last in _ROUTERS and inside in mixtures)
        if kind == "weight" and len(shape) == 2 and not of_mixture and not any(part in last for part in _NO_TARGETS):
            found[last] = None
    return tuple(found)


# In the model


def add_adapter(lm: Any, config: AdapterConfig, seed: int) -> None:
    """Give a model LoRA layers, which alone are trained from now on. Call it before the model is sharded.

    Args:
        lm: a causal LM. Its own parameters are frozen, in the dtype that they have.
        config: the settings.
        seed: seed of the matrices A, the same on every rank; B is zero. Torch's own generator is not changed.

    Raises:
        TrainerConfigError: the model lacks a target, or a target is no linear layer.
    """
    import torch

    with extra("tailrace-trainer", "adapters"):
        from peft import LoraConfig, inject_adapter_in_model

    linear = dict[str, None]()
    for name, module in lm.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not lm.get_output_embeddings():
            linear[name.rpartition(".")[2]] = None
    if config.targets != ALL_LINEAR:
        _check_targets(config.targets, tuple(linear))
    if not linear:
        raise TrainerConfigError(f"found no linear layer in {type(lm).__name__}, expected some for an adapter")
    targets = list(linear) if config.targets == ALL_LINEAR else list(config.targets)
    lora = LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets, task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(lora, lm, adapter_name=_NAME)
        # A as PEFT draws it, but the same numbers however the base is loaded, and in any backend.
        torch.manual_seed(seed)
        for layer in lora_layers(lm):
            a, b = layer.lora_A[_NAME], layer.lora_B[_NAME]
            if a.weight.is_meta:  # as the base's, which are read later
                a.to_empty(device="cpu")
                b.to_empty(device="cpu")
            torch.nn.init.kaiming_uniform_(a.weight, a=math.sqrt(5))
            torch.nn.init.zeros_(b.weight)
    for parameter in lm.parameters():
        if parameter.requires_grad:  # master weights, whatever the base has
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))


def lora_layers(module: Any) -> list[Any]:
    """The LoRA layers of a model."""
    from peft.tuners.lora import LoraLayer

    return [layer for layer in module.modules() if isinstance(layer, LoraLayer)]


def switch(layers: Iterable[Any], *, on: bool) -> None:
    """Let LoRA layers add their part or, for the base model's own outputs, not. Gradients and parameters stay as they are."""
    for layer in layers:
        layer._disable_adapters = not on  # PEFT's own method drops requires_grad, which sharded parameters need


def base_logprobs(module: Any) -> Callable[[MicroBatch, float], Tensor]:
    """Log-probabilities of (micro-batch, temperature) of a sharded policy's base model, without its adapter."""
    import torch

    layers = lora_layers(module)

    def logprobs(batch: MicroBatch, temperature: float) -> Tensor:
        switch(layers, on=False)
        try:
            with torch.no_grad():
                found: Tensor = module(batch, temperature, False)[0]
        finally:
            switch(layers, on=True)
        return found

    return logprobs


def published_name(parameter: str) -> str:
    """The name under which PEFT saves a parameter of an injected model."""
    return _PREFIX + parameter.replace(f".{_NAME}.", ".")


# In files


def adapter_config(config: AdapterConfig, names: Iterable[str], base: str) -> dict[str, Any]:
    """What ``adapter_config.json`` says, for PEFT.

    Args:
        config: the settings.
        names: the adapter's tensors.
        base: the base model's directory.
    """
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "target_modules": sorted({name.split(".")[-3] for name in names}),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }


def of_adapter(name: str) -> bool:
    """Whether a tensor of this name is an adapter's."""
    return name.startswith(_PREFIX) and any(name.endswith(end) for end in _SIDES)


def is_adapter(directory: Path) -> bool:
    """Whether a directory has an adapter and not a whole model."""
    return (directory / ADAPTER_CONFIG).is_file()


# Merging


class Adapter:
    """An adapter's tensors, to be merged into its base.

    Args:
        tensors: A ``[rank, in]`` and B ``[out, rank]`` of each layer, under PEFT's names.
        config: the settings.

    Raises:
        AdapterError: a name is no adapter's, a matrix lacks its other half, or one is of another rank.
    """

    def __init__(self, tensors: Mapping[str, Tensor], config: AdapterConfig) -> None:
        self._scaling = config.alpha / config.rank
        halves: dict[str, list[Tensor | None]] = {}
        for name, tensor in tensors.items():
            side = next((end for end in _SIDES if name.endswith(end)), None)
            if side is None or not of_adapter(name):
                raise AdapterError(f"found the tensor {name!r} in an adapter, expected LoRA's A and B alone")
            if tensor.shape[_SIDES[side]] != config.rank:
                raise AdapterError(f"found {name!r} of shape {list(tensor.shape)}, expected one of rank {config.rank}")
            layer = name.removeprefix(_PREFIX).removesuffix(side) + ".weight"
            halves.setdefault(layer, [None, None])[_SIDES[side]] = tensor
        if not halves:
            raise AdapterError("found no adapter, expected one: the trained weights would not reach the engine")
        self._halves: dict[str, tuple[Tensor, Tensor]] = {}
        for layer, (a, b) in halves.items():
            if a is None or b is None:
                raise AdapterError(f"found one matrix of the adapter of {layer!r}, expected A and B")
            self._halves[layer] = (a, b)

    @property
    def layers(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        """A and B by the names of the base's weights that are changed."""
        return self._halves

    @property
    def scale(self) -> float:
        """What the product of B and A is multiplied by."""
        return self._scaling

    def into(self, name: str, weight: Tensor) -> Tensor:
        """A weight of the base with its adapter, in its own dtype; as it is, if it has none.

        Raises:
            AdapterError: it is of another shape than the adapter's.
        """
        import torch

        if name not in self._halves:
            return weight
        a, b = self._halves[name]
        if weight.shape != (b.shape[0], a.shape[1]):
            raise AdapterError(
                f"found {name!r} of shape {list(weight.shape)} in the base, expected {[b.shape[0], a.shape[1]]}: the adapter "
                "is of another model"
            )
        wide = torch.promote_types(torch.promote_types(weight.dtype, a.dtype), torch.float32)
        return (weight.to(wide) + (b.to(wide) @ a.to(wide)) * self._scaling).to(weight.dtype)

    def merged(self, base: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The whole model, tensor by tensor.

        Raises:
            AdapterError: the base lacks a weight that the adapter changes.
        """
        left = set(self._halves)
        for name, weight in base:
            left.discard(name)
            yield name, self.into(name, weight)
        if left:
            raise AdapterError(f"found no {min(left)!r} in the base, expected it: the adapter is of another model")


def described(config: AdapterConfig) -> dict[str, Any]:
    """The settings as a checkpoint's manifest has them."""
    targets = config.targets if config.targets == ALL_LINEAR else list(config.targets)
    return {"rank": config.rank, "alpha": config.alpha, "targets": targets}


def read_adapter_config(directory: Path) -> AdapterConfig:
    """The settings of an adapter's directory.

    Raises:
        AdapterError: it has none, or they are damaged.
    """
    path = directory / ADAPTER_CONFIG
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return AdapterConfig(
            rank=int(found["r"]), alpha=float(found["lora_alpha"]), targets=tuple(found["target_modules"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AdapterError(f"{path}: found no settings of an adapter: {error}") from error
