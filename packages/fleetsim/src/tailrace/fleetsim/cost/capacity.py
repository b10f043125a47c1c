"""Checks what fits into the devices' memory: weights and KV cache of a replica, the state of a trainer."""

from __future__ import annotations

import math

from tailrace.fleetsim.errors import DoesNotFitError, FleetError
from tailrace.fleetsim.hardware.devices import Device
from tailrace.fleetsim.hardware.models import ModelShape

TRAINING_BYTES_PER_PARAM = 16.0
"""Weights and gradients in bf16, weights and two moments of Adam in float32. Activations are not included."""


def kv_shards(model: ModelShape, tensor_parallel: int) -> int:
    """Number of devices over which a replica's KV cache is sharded. With more devices than key-value heads, heads repeat."""
    return min(tensor_parallel, model.kv_heads)


def check_parallel(model: ModelShape, device: Device, tensor_parallel: int) -> None:
    """Refuse a tensor parallelism that does not divide the model's heads or for which the device has no constants.

    Raises:
        FleetError: the tensor parallelism is impossible.
    """
    sizes = _parallel_sizes(model, device)
    if tensor_parallel not in sizes:
        known = ", ".join(map(str, sizes)) or "none"
        reason = (
            f"{model.name} has {model.query_heads} attention heads, which it does not divide"
            if tensor_parallel > 0 and model.query_heads % tensor_parallel
            else f"{device.name} has no constants for it"
        )
        raise FleetError(f"found tensor_parallel = {tensor_parallel}, but {reason}; expected one of: {known}")


def kv_capacity_tokens(model: ModelShape, device: Device, tensor_parallel: int) -> int:
    """Tokens that fit into a replica's KV cache, in the memory that the weights leave.

    Raises:
        FleetError: the tensor parallelism is impossible.
        DoesNotFitError: the weights leave no room for a token.
    """
    check_parallel(model, device, tensor_parallel)
    tokens = _capacity(model, device, tensor_parallel)
    if tokens < 1:
        one = f"{_gb(device.memory_bytes)} x {device.memory_share:g} - {_gb(device.reserve_bytes)}"
        room = one if tensor_parallel == 1 else f"{tensor_parallel} x ({one})"
        fitting = [size for size in _parallel_sizes(model, device) if _capacity(model, device, size) >= 1]
        advice = (
            f"tensor_parallel = {fitting[0]} would"
            if fitting
            else f"not even tensor_parallel = {max(_parallel_sizes(model, device))} would"
        )
        raise DoesNotFitError(
            f"{model.name} on {tensor_parallel} x {device.name}: {_gb(model.weight_bytes)} of weights do not fit into "
            f"{_gb(tensor_parallel * device.usable_bytes)} ({room}); {advice}"
        )
    return tokens


def check_training_fits(
    model: ModelShape, device: Device, gpus: int, bytes_per_param: float = TRAINING_BYTES_PER_PARAM
) -> None:
    """Refuse a number of devices into which the fully sharded training state does not fit.

    Raises:
        FleetError: `gpus` is below 1.
        DoesNotFitError: the state does not fit.
    """
    if gpus < 1:
        raise FleetError(f"found {gpus} GPUs to train {model.name} on, expected at least 1")
    state = model.params * bytes_per_param
    room = device.memory_bytes * device.memory_share
    if state > gpus * room:
        raise DoesNotFitError(
            f"training {model.name} on {gpus} x {device.name}: {_gb(state)} of weights, gradients and optimizer state do "
            f"not fit into {_gb(gpus * room)} ({gpus} x {_gb(device.memory_bytes)} x {device.memory_share:g}); "
            f"{math.ceil(state / room)} GPUs would"
        )


def _capacity(model: ModelShape, device: Device, tensor_parallel: int) -> int:
    free = device.usable_bytes - model.weight_bytes / tensor_parallel
    return math.floor(free * kv_shards(model, tensor_parallel) / model.kv_bytes_per_token)


def _parallel_sizes(model: ModelShape, device: Device) -> list[int]:
    return [size for size in device.parallel_sizes if model.query_heads % size == 0]


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
