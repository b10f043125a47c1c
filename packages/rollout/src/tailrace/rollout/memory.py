"""How deep an engine sleeps, what it takes then, and the memory that it gives back."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tailrace.rollout.errors import EngineAsleepError, EngineBusyError, OptionError

SLEEPS = (1, 2)
"""The levels of sleep: 1 frees the KV cache, 2 the weights too."""


class Wakefulness:
    """What an engine takes: nothing while it sleeps, and no requests before it has weights again.

    Attributes:
        level: how deep it sleeps; 0: it is awake.
        empty: whether it dropped its weights as it slept, and none have come since.
    """

    def __init__(self) -> None:
        self.level = 0
        self.empty = False

    def check_awake(self) -> None:
        """Refuse a change of weights or an adapter while it sleeps.

        Raises:
            EngineAsleepError: it does.
        """
        if self.level:
            raise EngineAsleepError(f"the engine sleeps at level {self.level}; wake it first")

    def check_idle(self, in_flight: int, before: str) -> None:
        """Refuse what needs an engine that is awake and has no request in flight.

        Raises:
            EngineAsleepError: it sleeps.
            EngineBusyError: it has some.
        """
        self.check_awake()
        check_idle(in_flight, before)

    def check_serves(self) -> None:
        """Refuse requests.

        Raises:
            EngineAsleepError: it sleeps, or has no weights since.
        """
        self.check_awake()
        if self.empty:
            raise EngineAsleepError("found a request and no weights since the engine slept; load some first")


def check_idle(in_flight: int, before: str) -> None:
    """Refuse what needs an engine without requests.

    Args:
        in_flight: requests that it has.
        before: what is to happen, for the message.

    Raises:
        EngineBusyError: it has some.
    """
    if in_flight:
        raise EngineBusyError(f"{in_flight} requests are in flight; abort them before {before}")


def check_level(level: object, deepest: int, why: str = "") -> None:
    """Refuse a level of sleep that an engine does not know.

    Args:
        deepest: the deepest that it knows.
        why: what that follows from, for the message.

    Raises:
        OptionError: it does not.
    """
    if level not in SLEEPS[:deepest]:
        raise OptionError(f"found sleep level {level!r}, expected 1 to {deepest}{why}")


def memory_bytes() -> int:
    """Memory in use: of the CUDA device that this process uses, by whomever; without one the resident memory of this process
    and of those below it. 0 where the system does not say. An engine whose model is in another process asks that one."""
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


def worker_memory_bytes(worker: Any) -> int:
    """The `memory_bytes` of a worker's own process, which alone has its CUDA device."""
    del worker
    return memory_bytes()


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
