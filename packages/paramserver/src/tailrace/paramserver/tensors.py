"""Tensors and buffers as bytes and back. torch and numpy are imported only when their tensors are asked for or handed in,
or when only they can read an array of another library."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tailrace.contracts import extra
from tailrace.paramserver import dlpack
from tailrace.paramserver.copying import copy
from tailrace.paramserver.dlpack import flat_torch
from tailrace.paramserver.errors import ManifestInvalid
from tailrace.paramserver.manifest import DTYPES, TensorSpec, byte_size

_FORMATS = {"?": "bool", "B": "uint8", "b": "int8", "h": "int16", "H": "uint16", "i": "int32", "I": "uint32"}
_FORMATS |= {"q": "int64", "Q": "uint64", "e": "float16", "f": "float32", "d": "float64", "c": "uint8"}
_BY_SIZE = {("l", 8): "int64", ("L", 8): "uint64", ("l", 4): "int32", ("L", 4): "uint32"}


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor without torch. `numpy.from_dlpack` and `torch.from_dlpack` take it without a copy.

    What they make shares memory with it, and may be read for as long as it may: within the lease, if it came from one.
    Read-only memory stays read-only in numpy; torch does not know such memory, so never write to it there.

    Args:
        dtype: a key of `tailrace.paramserver.manifest.DTYPES`.
        shape: dimensions.
        data: its bytes, row-major: any C-contiguous buffer.
    """

    dtype: str
    shape: tuple[int, ...]
    data: Any

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule, see `tailrace.paramserver.dlpack.export`; `stream` means nothing for host memory.

        Raises:
            ManifestInvalid: dtype, shape and data do not fit together.
            ExportImpossible: not as the consumer asks, or neither numpy nor torch can do it here.
        """
        view = _flat(_contiguous("a RawTensor", self.data))
        _check_size("a RawTensor", self.dtype, tuple(self.shape), view)
        return dlpack.export(
            self.dtype, tuple(self.shape), view, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def as_torch(self) -> Any:
        """A torch tensor that shares its memory."""
        with extra("tailrace-paramserver", "torch"):
            import torch

        return flat_torch(memoryview(self.data)).view(getattr(torch, self.dtype)).reshape(self.shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Host memory."""
        return dlpack.CPU


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A tensor on its way into a version. `Publisher.publish` takes one in place of a tensor, too.

    Args:
        copy_to: writes its bytes, row-major, into a buffer of `nbytes`.
        memory: equal for two sources that are the same memory read the same way, as long as both are alive.
        alive: refers weakly to the tensor: gone when it returns None.
        lasting: whether nothing else is written to its memory until all tensors of the version are copied.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    copy_to: Callable[[memoryview], None]
    memory: tuple[Any, ...]
    alive: Callable[[], object]
    lasting: bool = False


def source(name: str, value: Any) -> TensorSource:
    """What to copy for a torch tensor, a `RawTensor`, a C-contiguous buffer, or an array that speaks DLPack.

    Arrays in host memory (numpy, jax, ...) are read where they are. Those on a device (cupy, jax, ...) are read by torch,
    which copies them to the host once, straight to where they are wanted.

    Raises:
        ManifestInvalid: the dtype is not supported, a buffer has gaps, or the library that can read it is missing.
    """
    if isinstance(value, TensorSource):
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_source(torch, name, value)
    if isinstance(value, RawTensor):
        view = _flat(_contiguous(name, value.data))
        return _buffer_source(name, value.dtype, tuple(value.shape), view, value.data)
    if dlpack.speaks_dlpack(value) and not _is_plain(value):
        return _dlpack_source(name, value)
    view = _contiguous(name, value)
    dtype = _dtype_of(view)
    if dtype is None:
        raise ManifestInvalid(
            f"{name!r}: found a buffer of format {view.format!r}; wrap it in RawTensor with its dtype"
        )
    return _buffer_source(name, dtype, tuple(view.shape or ()), _flat(view), value)


def as_torch(spec: TensorSpec, version: Any) -> Any:
    """The torch tensor of a spec, a view on `version`: the uint8 tensor that `flat_torch` made."""
    with extra("tailrace-paramserver", "torch"):
        import torch

    part = version[spec.offset : spec.offset + spec.nbytes]
    return part.view(getattr(torch, spec.dtype)).reshape(spec.shape)


def _torch_source(torch: Any, name: str, tensor: Any) -> TensorSource:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise ManifestInvalid(f"{name!r}: found the dtype {dtype}, expected one of {', '.join(DTYPES)}")
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise ManifestInvalid(f"{name!r}: found a {tensor.layout} tensor on {tensor.device}, expected a dense one")
    shape = tuple(tensor.shape)

    def copy_to(view: memoryview) -> None:
        if view.nbytes:
            flat = torch.frombuffer(view, dtype=torch.uint8)
            flat.view(tensor.dtype).reshape(shape).copy_(tensor.detach())

    memory = (str(tensor.device), tensor.data_ptr(), dtype, shape, tensor.stride(), tensor.is_neg())
    return TensorSource(dtype, shape, byte_size(dtype, shape), copy_to, memory, weakref.ref(tensor))


def _dlpack_source(name: str, value: Any) -> TensorSource:
    array = dlpack.numpy_view(value) if dlpack.on_host(name, value) else None
    if array is None:
        tensor = dlpack.torch_view(name, value)
        return replace(_torch_source(sys.modules["torch"], name, tensor), alive=_weakly(value))
    dtype, shape = array.dtype.name, tuple(array.shape)
    if dtype not in DTYPES:
        raise ManifestInvalid(
            f"{name!r}: found the dtype {dtype}, expected one of {', '.join(DTYPES)}; or wrap its bytes in RawTensor"
        )

    def copy_to(view: memoryview) -> None:
        if view.nbytes:
            numpy = sys.modules["numpy"]
            numpy.copyto(numpy.frombuffer(view, dtype).reshape(shape), array)

    memory = ("cpu", array.__array_interface__["data"][0], dtype, shape, array.strides)
    return TensorSource(dtype, shape, byte_size(dtype, shape), copy_to, memory, _weakly(value))


def _buffer_source(name: str, dtype: str, shape: tuple[int, ...], view: memoryview, owner: Any) -> TensorSource:
    nbytes = _check_size(repr(name), dtype, shape, view)

    def copy_to(target: memoryview) -> None:
        if nbytes:
            copy(target, view)

    return TensorSource(dtype, shape, nbytes, copy_to, (id(owner), dtype, shape), _weakly(owner))


def _check_size(what: str, dtype: str, shape: tuple[int, ...], view: memoryview) -> int:
    if dtype not in DTYPES:
        raise ManifestInvalid(f"{what}: found the dtype {dtype!r}, expected one of {', '.join(DTYPES)}")
    nbytes = byte_size(dtype, shape)
    if view.nbytes != nbytes:
        raise ManifestInvalid(f"{what}: found {view.nbytes} bytes, expected {nbytes} for {dtype} {shape}")
    return nbytes


def _weakly(owner: Any) -> Callable[[], object]:
    try:
        return weakref.ref(owner)
    except TypeError:  # bytes, for one; then it is never known to be alive, and never tied
        return _gone


def _gone() -> None:
    return None


def _is_plain(value: Any) -> bool:
    """Whether its memory can be read without any library: a C-contiguous buffer of a known format."""
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        return False
    return view.c_contiguous and _dtype_of(view) is not None


def _dtype_of(view: memoryview) -> str | None:
    return _FORMATS.get(view.format) or _BY_SIZE.get((view.format, view.itemsize))


def _contiguous(name: str, value: Any) -> memoryview:
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError) as error:
        raise ManifestInvalid(
            f"{name!r}: found a {type(value).__name__}, expected a torch tensor, an array, a RawTensor or a buffer"
        ) from error
    if not view.c_contiguous:
        raise ManifestInvalid(f"{name!r}: found a buffer with gaps, expected a C-contiguous one")
    return view


def _flat(view: memoryview) -> memoryview:
    return view.cast("B") if view.nbytes else memoryview(b"")
