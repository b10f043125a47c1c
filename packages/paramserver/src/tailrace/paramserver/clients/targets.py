"""The caller's own tensors and buffers, into which a version is copied."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tailrace.paramserver.copying import Address
from tailrace.paramserver.errors import ManifestInvalid
from tailrace.paramserver.flat import flat_torch
from tailrace.paramserver.manifest import TensorSpec
from tailrace.paramserver.tensors import RawTensor, as_torch, source


@dataclass(frozen=True, slots=True)
class TensorTarget:
    """The place to which one tensor is copied.

    Args:
        spec: the tensor.
        address: the address of its first byte in this process's memory; None if it is elsewhere, or has gaps.
        write: for such a tensor, a function that copies it from the version's bytes.
    """

    spec: TensorSpec
    address: int | None
    write: Callable[[memoryview], None] | None = None


def target(spec: TensorSpec, value: Any, held: ExitStack) -> TensorTarget:
    """The target that a caller gave for a tensor: a torch tensor, a `RawTensor` or a writable buffer (numpy array).

    Args:
        held: keeps the buffer where it is for as long as it is open.

    Raises:
        ManifestInvalid: its dtype, shape or size is not that of the tensor, or it cannot be written.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_target(torch, spec, value)
    found = source(spec.name, value)
    if (found.dtype, found.shape) != (spec.dtype, spec.shape) and not _bytes_of(spec, found.dtype, found.shape):
        raise _differs(spec, found.dtype, found.shape)
    buffer = value.data if isinstance(value, RawTensor) else value
    try:
        return TensorTarget(spec, held.enter_context(Address(buffer, writable=True)).start)
    except BufferError as error:
        raise ManifestInvalid(f"{spec.name!r}: found a buffer that cannot be written ({error})") from error


def _torch_target(torch: Any, spec: TensorSpec, tensor: Any) -> TensorTarget:
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if (dtype, shape) != (spec.dtype, spec.shape):
        raise _differs(spec, dtype, shape)
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise ManifestInvalid(f"{spec.name!r}: found a {tensor.layout} tensor on {tensor.device}, expected a dense one")
    tensor = tensor.detach()  # a parameter is written like its `.data`: no autograd, no gradient
    if tensor.device.type == "cpu" and tensor.is_contiguous():
        return TensorTarget(spec, int(tensor.data_ptr()))

    def write(version: memoryview) -> None:
        tensor.copy_(as_torch(spec, flat_torch(version)))

    return TensorTarget(spec, None, write)


def _bytes_of(spec: TensorSpec, dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether a plain byte buffer is meant for the tensor's bytes."""
    return dtype == "uint8" and shape == (spec.nbytes,)


def _differs(spec: TensorSpec, dtype: str, shape: tuple[int, ...]) -> ManifestInvalid:
    return ManifestInvalid(
        f"{spec.name!r}: found a target of {dtype} {list(shape)}, expected {spec.dtype} {list(spec.shape)}"
    )
