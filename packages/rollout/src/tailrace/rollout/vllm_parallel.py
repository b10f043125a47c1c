"""An engine of vLLM whose model runs in worker processes beside the engine's own: one for each device that it spans (tensor
parallelism), or a single one, where another engine runs in the engine's process already."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailrace.rollout.errors import DeviceMissingError, OptionError
from tailrace.rollout.options import CacheShape

_PART_BYTES = 256 << 20
_SHARED = Path("/dev/shm")  # noqa: S108, RUF100 - the memory that processes share


def check_parallel(shape: CacheShape, workers: int) -> None:
    """Refuse a number of devices that does not divide the model's heads.

    Raises:
        OptionError: it does not.
    """
    if shape.heads % workers:
        raise OptionError(
            f"engine option tensor_parallel_size: found {workers}, expected a divisor of the model's {shape.heads} heads"
        )


def bind_workers(workers: int) -> None:
    """Give each worker process of an engine that is built next a core of its own. Left to itself, vLLM wants a NUMA node each.

    Raises:
        DeviceMissingError: this process may use fewer cores than there are workers.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < workers:
        raise DeviceMissingError(f"found {len(cores)} cores, expected one for each of tensor_parallel_size={workers}")
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(str, cores[:workers]))


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


def load_in_workers(llm: Any, weights: Iterable[tuple[str, Any]]) -> list[str]:
    """Give weights of full shape to every worker, each of which takes its part.

    Returns:
        Parameters that got no weights in some worker.
    """
    missing: list[set[str]] = [set(names) for names in llm.collective_rpc("tailrace_parameters")]
    with tempfile.TemporaryDirectory(prefix="tailrace-", dir=_SHARED if _SHARED.is_dir() else None) as folder:
        for part in _parts(weights):
            path = Path(folder) / "part"
            _save(part, path)
            for names, filled in zip(missing, llm.collective_rpc("tailrace_load", args=(str(path),)), strict=True):
                names.difference_update(filled)
    return sorted(set().union(*missing))


def _parts(weights: Iterable[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    part: dict[str, Any] = {}
    size = 0
    for name, tensor in weights:
        part[name] = tensor.detach().cpu().contiguous()
        size += tensor.numel() * tensor.element_size()
        if size >= _PART_BYTES:
            yield part
            part, size = {}, 0
    if part:
        yield part


def _save(part: dict[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.clone() for name, tensor in part.items()}, path)
