"""Experts of vLLM on CPU: its kernel wants their matrices packed, and this reads them back as they were before.

How the kernel packs is its own matter. Each matrix is a permutation of its elements, which packing their numbers shows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any


def plain_parameters(model: Any) -> Callable[[str], Any]:
    """Looks up a worker's parameters by vLLM's name, those of packed experts as they were loaded; None where there is none.

    A stack of experts is unpacked when it is asked for, and the last two are kept: a whole mixture would not fit beside itself.

    Args:
        model: the worker's part of the model.
    """
    parameters = {  # a layer that may get an adapter has its own weights one step deeper
        name.replace(".base_layer.", "."): parameter for name, parameter in model.named_parameters()
    }
    packed = {
        f"{name}.{matrices}": isa
        for name, layer in model.named_modules()
        if (isa := _packed_for(layer)) is not None
        for matrices in ("w13_weight", "w2_weight")
    }

    @lru_cache(maxsize=2)
    def unpacked(name: str) -> Any:
        return _unpacked(parameters[name], packed[name])

    return lambda name: unpacked(name) if name in packed else parameters.get(name)


def _packed_for(layer: Any) -> str | None:
    """The instructions for which a layer's experts are packed; None if they are not."""
    kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
    experts = getattr(kernel, "fused_experts", None)
    if experts is None:
        return None
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    return experts.isa if isinstance(experts, CPUUnquantizedExperts) and not experts._use_zentorch else None


def _unpacked(stack: Any, isa: str) -> Any:
    """A stack of packed matrices [experts, rows, columns] as it was before."""
    import torch

    plain = torch.empty_like(stack.data)
    plain.flatten(1)[:, _places(*stack.shape[1:], stack.dtype, isa)] = stack.data.flatten(1)
    return plain


@cache
def _places(rows: int, columns: int, dtype: Any, isa: str) -> Any:
    """The number that each element of a packed matrix had before: row-major, int64."""
    import torch
    from vllm._custom_ops import cpu_prepack_moe_weight

    numbers, places = torch.arange(rows * columns), torch.zeros(rows * columns, dtype=torch.int64)
    for shift in range(0, (rows * columns).bit_length(), 8):  # eight bits at a time: every dtype has those exactly
        digits = ((numbers >> shift) & 255).to(dtype).view(1, rows, columns)
        places += cpu_prepack_moe_weight(digits, isa).flatten().to(torch.int64) << shift
    return places
