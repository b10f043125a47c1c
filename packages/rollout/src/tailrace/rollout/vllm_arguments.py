"""Arguments and variables of vLLM itself, by engine option `engine_args`: which there are, and which Tailrace keeps for itself.

    [rollout.options.engine_args]
    max_num_partial_prefills = 2       # any argument of vLLM's EngineArgs
    VLLM_USE_DEEP_GEMM = false         # any variable of vLLM's own

Their names are those of the installed vLLM, which is read and not imported: a wrong one is refused before a run starts.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tailrace.rollout.errors import EngineMissingError, OptionError
from tailrace.rollout.options import check_engine_args, check_known

_VARIABLE = "VLLM_"
_OPTION_OF = {
    "dtype": "dtype",
    "seed": "seed",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_batch_tokens",
    "kv_cache_memory_bytes": "kv_cache_bytes",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "block_size": "block_tokens",
    "enable_prefix_caching": "prefix_cache",
    "enforce_eager": "eager",
    "tensor_parallel_size": "tensor_parallel_size",
    "async_scheduling": "async_scheduling",
    "enable_lora": "adapter_rank",
    "max_lora_rank": "adapter_rank",
    "max_loras": "adapters",
    "enable_sleep_mode": "sleep_level",
    "VLLM_CPU_KVCACHE_SPACE": "kv_cache_bytes",
}
_KEPT = {
    "model": "model.path names the model",
    "skip_tokenizer_init": "an engine gets token ids",
    "generation_config": "a run says itself how tokens are drawn and which end a response",
    "logprobs_mode": "log-probabilities are those of the distribution that a token was drawn from",
    "distributed_executor_backend": "whether the model runs in this process follows from engine option apart",
    "worker_extension_cls": "workers take weights by one of Tailrace's own",
    "pipeline_parallel_size": "each stage would miss the parameters of the others when weights change",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "a replica drives the engine step by step",
    "VLLM_WORKER_MULTIPROC_METHOD": "a fork would copy the locks of a replica's threads",
}
_REPLICAS = "data_parallel_"  # a run has replicas for it


def check_arguments(given: Mapping[str, Any]) -> None:
    """Refuse arguments and variables that the installed vLLM does not have, or that are not for the user to set.

    Raises:
        OptionError: one is unknown, or Tailrace sets it.
        EngineMissingError: there are some, and vLLM is not installed.
    """
    check_engine_args(given, _OPTION_OF, _KEPT)
    for name, value in given.items():
        if name.startswith(_REPLICAS):
            raise OptionError(f"engine option engine_args: found {name!r}, expected rollout.replicas")
        check_known(name, variables() if name.startswith(_VARIABLE) else arguments(), "vLLM")
        if name.startswith(_VARIABLE) and not isinstance(value, str | int | float):
            raise OptionError(
                f"engine option engine_args: found {value!r} as {name}, expected a text, a number or true or false"
            )


def without_variables(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of vLLM's `EngineArgs` among them."""
    return {name: value for name, value in given.items() if not name.startswith(_VARIABLE)}


_set: dict[str, str] = {}  # by engines of this process


def set_variables(given: Mapping[str, Any]) -> None:
    """Set the variables among them for this process and its children. Call it before vLLM is imported.

    Raises:
        OptionError: an engine of this process has another value, which vLLM keeps.
    """
    for name, value in given.items():
        if not name.startswith(_VARIABLE):
            continue
        text = str(int(value) if isinstance(value, bool) else value)
        if _set.setdefault(name, text) != text:
            raise OptionError(
                f"engine option engine_args: found {text!r} as {name}, expected {_set[name]!r}, which another engine of this "
                "process has: vLLM reads it once"
            )
        os.environ[name] = text


@lru_cache(maxsize=1)
def arguments() -> tuple[str, ...]:
    """Names of the arguments of the installed vLLM.

    Raises:
        EngineMissingError: vLLM is not installed, or its arguments are not where they are expected.
    """
    for node in _read("engine/arg_utils.py").body:
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
            fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
            return tuple(field.id for field in fields if isinstance(field, ast.Name) and not field.id.startswith("_"))
    raise EngineMissingError(
        "found no class EngineArgs in vllm/engine/arg_utils.py, expected vLLM's list of its arguments"
    )


@lru_cache(maxsize=1)
def variables() -> tuple[str, ...]:
    """Names of the variables of the installed vLLM.

    Raises:
        EngineMissingError: vLLM is not installed, or its variables are not where they are expected.
    """
    for node in _read("envs.py").body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Dict):
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            if node.target.id == "environment_variables":
                return tuple(str(key) for key in keys if str(key).startswith(_VARIABLE))
    raise EngineMissingError("found no environment_variables in vllm/envs.py, expected vLLM's list of its variables")


def _read(name: str) -> ast.Module:
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise EngineMissingError("found no vLLM, expected one for engine option engine_args")
    path = Path(next(iter(spec.submodule_search_locations))) / name
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise EngineMissingError(f"found no list of vLLM's own in {path}: {error}") from error
