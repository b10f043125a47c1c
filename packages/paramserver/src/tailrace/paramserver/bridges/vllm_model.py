"""The model of a vLLM worker: its layout, and how it takes other weights. Only processes of vLLM's workers import this file.

Weights come in by vLLM's own layerwise reload. It gives every layer back the form in which it was before its first load, loads,
repacks it for the kernels in use, and copies the result to where the kernels read. It misses two kinds of layers, which are
repaired here:

* a layer that shares its weight with another one gets none of its own, so on CPU, where the output layer keeps a repacked copy,
  a model with tied embeddings would go on with its old logits;
* experts on CPU are repacked at the first load only (vLLM 0.32), so the kernel would read later ones in a form that it does not
  know.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from tailrace.paramserver.clients.needs import Needs
from tailrace.paramserver.errors import LayoutInvalid
from tailrace.paramserver.layout.sharding import GlobalTensor, Layout
from tailrace.paramserver.layout.vllm import from_vllm

_log = logging.getLogger(__name__)


def worker_rank(config: Any) -> str:
    """The name of this worker in layouts of its engine.

    Args:
        config: the engine's `VllmConfig`.
    """
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    tp = int(config.parallel_config.tensor_parallel_size)
    return f"rank{get_pp_group().rank_in_group * tp + get_tp_group().rank_in_group}"


def engine_layout(config: Any, tensors: Iterable[GlobalTensor]) -> Layout:
    """Which worker of the engine has which part of each tensor, and where.

    Args:
        config: the engine's `VllmConfig`.
        tensors: the model, in Hugging Face names.

    Raises:
        LayoutInvalid: the table of `from_vllm` lacks the model, or engines share out the experts of one model.
    """
    parallel = config.parallel_config
    if parallel.data_parallel_size > 1:
        raise LayoutInvalid(f"data_parallel_size: found {parallel.data_parallel_size}, expected 1")
    return from_vllm(
        tensors,
        config.model_config.hf_text_config.to_dict(),
        tp=int(parallel.tensor_parallel_size),
        pp=int(parallel.pipeline_parallel_size),
        expert_parallel=bool(parallel.enable_expert_parallel),
    )


def worker_needs(config: Any) -> Needs | None:
    """What this worker needs of versions, by its place among the workers; None where it needs all, or that is not known."""
    parallel = config.parallel_config
    workers = int(parallel.tensor_parallel_size) * int(parallel.pipeline_parallel_size)
    if workers == 1 or parallel.data_parallel_size > 1:
        return None
    rank = worker_rank(config)

    def layout(tensors: tuple[GlobalTensor, ...]) -> Layout:
        try:
            return engine_layout(config, tensors)
        except LayoutInvalid as error:  # a model that the table lacks: vLLM cuts it out of whole tensors
            _log.info("all of each version is read, not this worker's part: %s", error)
            return Layout.replicated(tensors, [rank])

    return Needs(layout, rank)


_AS_LOADED = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)


def keeps_what_it_loads(model: torch.nn.Module) -> bool:
    """Whether every layer generates with its weights as they are loaded, so that others can be loaded over them.

    On CPU that is so if linear layers are kept plain. Experts and quantised layers are repacked.
    """
    methods = (getattr(layer, "quant_method", None) for layer in model.modules())
    return all(method is None or isinstance(method, _AS_LOADED) for method in methods)


def reload(model: torch.nn.Module, model_config: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Load weights, and return the layers that did not get all of theirs.

    Args:
        model: the worker's part of the model.
        model_config: the engine's `ModelConfig`.
        weights: pairs of a Hugging Face name and a tensor of the full shape.

    Raises:
        Exception: a tensor does not fit. Layers that got no weights have those that they had.
    """
    shared = _sharing_layers(model)
    with _repacked_experts():
        initialize_layerwise_reload(model)
        try:
            model.load_weights(weights)  # type: ignore[operator, unused-ignore]
            return _incomplete_layers(model, shared)
        finally:
            # Also after an error: the layers that got no weights take back those that they had.
            finalize_layerwise_reload(model, model_config)
            for layer in shared:
                layer.quant_method.process_weights_after_loading(layer)


@contextmanager
def _repacked_experts() -> Iterator[None]:
    """Experts are repacked for the kernel of a CPU at each load."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        yield
        return
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    set_up = UnquantizedFusedMoEMethod._setup_kernel

    def again(method: Any, layer: Any, w13: torch.Tensor, w2: torch.Tensor) -> None:
        first = method.moe_kernel is None
        set_up(method, layer, w13, w2)
        if not first:
            method.moe_kernel.fused_experts.process_weights_after_loading(layer)

    UnquantizedFusedMoEMethod._setup_kernel = again
    try:
        yield
    finally:
        UnquantizedFusedMoEMethod._setup_kernel = set_up


def _sharing_layers(model: torch.nn.Module) -> list[Any]:
    """Layers whose parameter belongs to an earlier layer too, which is the one that gets the weights."""
    seen: dict[int, Any] = {}
    sharing = []
    for layer in model.modules():
        for parameter in layer._parameters.values():
            if parameter is None or not parameter.numel():
                continue
            if seen.setdefault(id(parameter), layer) is not layer and hasattr(layer, "quant_method"):
                sharing.append(layer)
    return sharing


def _incomplete_layers(model: torch.nn.Module, shared: list[Any]) -> list[str]:
    """Layers that wait for weights although all have arrived. Call before the reload is finalized."""
    found = []
    for name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        if not info.can_load() or not layer._parameters or any(layer is other for other in shared):
            continue
        wanted = sum(p.numel() for p in layer._parameters.values() if p is not None)
        # Other layers than these may be padded, and are then complete with fewer elements than they have.
        exact = isinstance(getattr(layer, "quant_method", None), UnquantizedLinearMethod)
        exact = exact and not isinstance(layer, VocabParallelEmbedding)
        if info.load_numel < (wanted if exact else min(wanted, 1)):
            found.append(name)
    return found
