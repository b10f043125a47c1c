"""A pull on the relay's host: a lease and a copy into warm shared memory, beside memcpy into the same memory."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tailrace.paramserver import CHUNK_BYTES, Publisher, RelayProcess, RelayReader, new_token

from . import model
from .contenders import Contender

MEMCPY = "memcpy into warm shared memory, 32 MiB at a time"


@contextmanager
def served(nbytes: int) -> Iterator[tuple[str, str]]:
    """A relay in a process of its own with one version of the model; its address and token."""
    token = new_token()
    with RelayProcess.start(f"bench-{os.getpid()}", token=token) as relay:
        with Publisher(relay.address, token=token) as publisher:
            publisher.publish(1, model.on(memoryview(model.arena(model.total_bytes(nbytes))), nbytes).items())
            publisher.wait(1, 120)
        yield relay.address, token


def contenders(address: str, token: str, nbytes: int) -> list[Contender]:
    """memcpy in two ways; pulls, plain and verified, into one piece of memory and into separate tensors."""
    total = model.total_bytes(nbytes)
    source, target = model.arena(total), model.arena(total)
    targets = {"one arena": model.on(memoryview(target), nbytes), "separate tensors": model.apart(nbytes)}
    reader = RelayReader(address, token=token, same_host=True)
    found = [
        Contender(MEMCPY, total, _memcpy(target, source, total, CHUNK_BYTES)),
        Contender("memcpy in one piece", total, _memcpy(target, source, total, total), MEMCPY),
    ]
    for where, tensors in targets.items():
        for how, verify in (("plain", False), ("verified", True)):
            found.append(
                Contender(
                    f"pull into {where}, {how}", total, _pull(reader, tensors, verify=verify), MEMCPY, reader.close
                )
            )
    return found


def _memcpy(into: Any, source: Any, nbytes: int, step: int) -> Callable[[], float]:
    target, origin = (ctypes.addressof(ctypes.c_char.from_buffer(memory)) for memory in (into, source))
    held = (into, source)

    def once() -> float:
        assert held  # the addresses say nothing to the garbage collector
        start = time.perf_counter()
        for offset in range(0, nbytes, step):
            ctypes.memmove(target + offset, origin + offset, min(step, nbytes - offset))
        return time.perf_counter() - start

    return once


def _pull(reader: RelayReader, tensors: dict[str, Any], *, verify: bool) -> Callable[[], float]:
    def once() -> float:
        start = time.perf_counter()
        with reader.lease(1, verify=False) as weights:
            weights.copy_into(tensors, verify=verify)
        return time.perf_counter() - start

    return once
