"""Copies of layers from host memory into buffers on the device, beside computing or not.

A slot is one buffer's number. A streamer calls ``begin`` once a pass, then for each slot ``copy``, ``wait``, ``release`` in
turn; ``wait`` returns when computing may read the buffer, ``release`` says that what was queued so far is its last use.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch


class Copier(Protocol):
    """Carries layers into slots."""

    def begin(self) -> None: ...
    def copy(self, slot: int, target: torch.Tensor, source: torch.Tensor) -> None: ...
    def wait(self, slot: int) -> None: ...
    def release(self, slot: int) -> None: ...

    def drain(self) -> None:
        """Return when no copy is under way any more."""

    def close(self) -> None: ...


class InlineCopier:
    """Copies when it is told to and returns when that is done: the computing waits for every copy."""

    def begin(self) -> None:
        pass

    def copy(self, slot: int, target: torch.Tensor, source: torch.Tensor) -> None:  # noqa: ARG002
        target.copy_(source)
        if target.is_cuda:
            torch.cuda.current_stream(target.device).synchronize()

    def wait(self, slot: int) -> None:
        pass

    def release(self, slot: int) -> None:
        pass

    def drain(self) -> None:
        pass

    def close(self) -> None:
        pass


class ThreadCopier:
    """Copies in a thread beside the computing, which on a CPU has ended when a slot is released."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tailrace-judge-copy")
        self._copies: dict[int, Future[Any]] = {}

    def begin(self) -> None:
        pass

    def copy(self, slot: int, target: torch.Tensor, source: torch.Tensor) -> None:
        self._copies[slot] = self._thread.submit(target.copy_, source)

    def wait(self, slot: int) -> None:
        self._copies.pop(slot).result()

    def release(self, slot: int) -> None:
        pass

    def drain(self) -> None:
        for slot in list(self._copies):
            self.wait(slot)

    def close(self) -> None:
        self._thread.shutdown()


class StreamCopier:
    """Copies from pinned memory on a CUDA stream of its own; events order it with the computing, and the host never waits."""

    def __init__(self, device: torch.device, slots: int) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._filled = [torch.cuda.Event() for _ in range(slots)]

    def begin(self) -> None:
        # The buffers may be memory that computing has just given back.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, slot: int, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            self._filled[slot].record(self._stream)

    def wait(self, slot: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._filled[slot])

    def release(self, slot: int) -> None:  # noqa: ARG002 (all that is queued, the slot's last use included)
        self._stream.wait_event(torch.cuda.current_stream(self._device).record_event())

    def drain(self) -> None:
        self._stream.synchronize()

    def close(self) -> None:
        self.drain()


def copier_for(device: torch.device, slots: int, *, pipelined: bool) -> Copier:
    """The way to copy to a device: beside computing if `pipelined`."""
    if not pipelined:
        return InlineCopier()
    return StreamCopier(device, slots) if device.type == "cuda" else ThreadCopier()
