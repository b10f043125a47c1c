"""The layout of the vLLM engine that this worker is part of. Only processes of vLLM's workers call it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

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
