"""Copying a box between two dense row-major memories: bytes with memoryview, or torch tensors on any device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from typing import Any

from tailrace.paramserver.dlpack import flat_torch
from tailrace.paramserver.errors import LayoutMismatch

_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def is_torch(value: Any) -> bool:
    """Whether a value is a torch tensor. Does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def flat(value: Any, name: str, nbytes: int, *, writable: bool) -> Any:
    """A buffer as flat bytes: a memoryview, or a uint8 tensor for a torch tensor. Shares its memory.

    Raises:
        LayoutMismatch: its size is not `nbytes`, it has gaps, or it must be writable and is not.
    """
    if is_torch(value):
        found = value.numel() * value.element_size()
        if found != nbytes or not value.is_contiguous():
            gaps = "" if value.is_contiguous() else " with gaps"
            raise LayoutMismatch(f"{name!r}: found a tensor of {found} bytes{gaps}, expected {nbytes} without gaps")
        import torch

        return value.detach().reshape(-1).view(torch.uint8)
    try:
        view = memoryview(value)
    except TypeError as error:
        raise LayoutMismatch(
            f"{name!r}: found a {type(value).__name__}, expected a buffer or a torch tensor"
        ) from error
    if view.nbytes != nbytes or not view.c_contiguous:
        gaps = "" if view.c_contiguous else " with gaps"
        raise LayoutMismatch(f"{name!r}: found a buffer of {view.nbytes} bytes{gaps}, expected {nbytes} without gaps")
    if writable and view.readonly:
        raise LayoutMismatch(f"{name!r}: found a read-only buffer, expected one that can be written")
    if not nbytes:
        return memoryview(bytearray())
    try:
        return view.cast("B")
    except (TypeError, ValueError) as error:
        raise LayoutMismatch(
            f"{name!r}: found a buffer of format {view.format!r}, expected one of plain bytes"
        ) from error


def copy_box(
    source: Any,
    source_at: int,
    source_strides: Sequence[int],
    target: Any,
    target_at: int,
    target_strides: Sequence[int],
    extent: Sequence[int],
    itemsize: int,
) -> None:
    """Copy one box between two flat memories. Offsets and strides are in bytes; the extent is in elements."""
    if is_torch(source) or is_torch(target):
        view = _torch_box(target, target_at, target_strides, extent, itemsize)
        view.copy_(_torch_box(source, source_at, source_strides, extent, itemsize))
        return
    # Innermost dimensions that are dense on both sides make one run of bytes.
    run, outer = itemsize, len(extent)
    while outer and (extent[outer - 1] == 1 or source_strides[outer - 1] == target_strides[outer - 1] == run):
        outer -= 1
        run *= extent[outer]
    if not outer:
        target[target_at : target_at + run] = source[source_at : source_at + run]
        return
    count, source_step, target_step = extent[outer - 1], source_strides[outer - 1], target_strides[outer - 1]
    for index in product(*(range(size) for size in extent[: outer - 1])):
        a = source_at + sum(i * stride for i, stride in zip(index, source_strides, strict=False))
        b = target_at + sum(i * stride for i, stride in zip(index, target_strides, strict=False))
        for _ in range(count):
            target[b : b + run] = source[a : a + run]
            a += source_step
            b += target_step


def dense_strides(extent: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Byte strides of a row-major box without gaps."""
    strides = [itemsize] * len(extent)
    for dimension in range(len(extent) - 1, 0, -1):
        strides[dimension - 1] = strides[dimension] * extent[dimension]
    return tuple(strides)


def _torch_box(memory: Any, at: int, strides: Sequence[int], extent: Sequence[int], itemsize: int) -> Any:
    import torch

    if not is_torch(memory):
        memory = flat_torch(memory)
    # Any integer of the right size will do: bits are copied, not numbers.
    length = itemsize + sum((size - 1) * stride for size, stride in zip(extent, strides, strict=True))
    typed = memory[at : at + length].view(getattr(torch, _INTEGERS[itemsize]))
    return typed.as_strided(tuple(extent), [stride // itemsize for stride in strides], typed.storage_offset())
