"""Copies of a rank's state in host memory that is reused: memory that was touched before takes a copy several times as fast."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch
from torch import Tensor


class HostCopies:
    """Memory for copies of tensors. It grows to as many copies as are held at once, and stays.

    `take` is for one thread; any thread may call `give_back`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[dict[str, Tensor]] = []

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy tensors of any device into host memory that nobody else uses until it is given back.

        Memory for other names, shapes or dtypes than these is freed.
        """
        with self._lock:
            memory = self._free.pop() if self._free else {}
        if not _fits(memory, tensors):
            memory = {name: _like(tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            memory[name].copy_(tensor, non_blocking=True)
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        return memory

    def give_back(self, memory: dict[str, Tensor]) -> None:
        """Let a later copy take the place of this one."""
        with self._lock:
            self._free.append(memory)


def _fits(memory: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> bool:
    return memory.keys() == tensors.keys() and all(
        memory[name].shape == tensor.shape and memory[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
