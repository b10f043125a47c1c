"""Memory that an engine gives back while it sleeps, and how much a process has."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def memory_bytes() -> int:
    """Memory that is in use: of the CUDA device that this process uses, by whomever; without one the resident memory of this
    process and of those below it. 0 where the system does not say."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        free, total = torch.cuda.mem_get_info()
        return int(total - free)
    found, processes = 0, [os.getpid()]
    while processes:
        process = Path("/proc") / str(processes.pop())
        try:
            found += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for task in (process / "task").iterdir():
                processes += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue  # it ended meanwhile, or there is no /proc
    return found


def free_heap() -> None:
    """Give memory that was freed back to the system. The C library keeps smaller pieces otherwise."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


# vLLM on CPU ignores its own sleep mode. These run in each of its workers, and take the memory out from under the tensors, so
# that whatever refers to them, or to views of them, is right again afterwards.


def free_worker(worker: Any, level: int) -> None:
    """Free the KV cache of a vLLM worker on CPU (1), or its weights too (2)."""
    freed: list[tuple[Any, int]] = worker.__dict__.setdefault("tailrace_freed", [])
    tensors = list(_caches(worker.model_runner.kv_caches))
    if level == 2:
        tensors += worker.model_runner.model.parameters()
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            freed.append((storage, storage.nbytes()))
            storage.resize_(0)
    free_heap()


def fill_worker(worker: Any) -> None:
    """Take the memory of a vLLM worker again. The KV cache is zero, as at the start; what weights are is not said."""
    for storage, nbytes in worker.__dict__.pop("tailrace_freed", []):
        storage.resize_(nbytes)
        storage.fill_(0)


def _caches(caches: Iterable[Any]) -> Iterable[Any]:
    for cache in caches:  # some layers have several tensors
        yield from cache if isinstance(cache, list | tuple) else (cache,)
