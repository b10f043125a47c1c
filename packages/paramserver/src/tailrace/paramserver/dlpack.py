"""Arrays of other libraries in, `RawTensor`s out, without a copy, by DLPack; and flat torch views of a buffer.

Version memory is read-only, and only DLPack 1.0 can say so: its capsules carry a read-only flag. So a read-only tensor
is exported to consumers that ask for version 1.0 or later, as numpy 2.3 and torch 2.13 do, and to others only as a copy.
numpy keeps to the flag. torch has no read-only tensors and ignores it: a write through such a tensor ends the process
when the memory is shared, as it does for the tensors of a lease.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

from tailrace.contracts import extra
from tailrace.paramserver.errors import ManifestInvalid, ParamServerError


def flat_torch(view: memoryview) -> Any:
    """A buffer as a uint8 torch tensor that shares its memory."""
    with extra("tailrace-paramserver", "torch"):
        import torch

    if not view.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    with warnings.catch_warnings():
        # It is not writable on purpose: these are weights that other processes read too.
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        return torch.frombuffer(view, dtype=torch.uint8)


CPU = (1, 0)  # kDLCPU and its only device
_HOST = {1: "CPU", 3: "CUDA pinned host", 11: "ROCm pinned host"}
_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA managed", 14: "oneAPI"}
_NOT_NUMPY = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
# What from_dlpack and __dlpack__ raise; vLLM on a machine without a GPU leaves a torch whose streams lack attributes.
_FOREIGN = (BufferError, RuntimeError, TypeError, ValueError, AssertionError, AttributeError)


class ExportImpossible(ParamServerError, BufferError):  # noqa: N818  named for what happened, as in errors.py
    """A tensor cannot be exported through DLPack as the consumer asked."""


class _Versioned(ctypes.Structure):
    """The head of DLManagedTensorVersioned, up to its flags. This layout is the same for every DLPack 1.x."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


def speaks_dlpack(value: object) -> bool:
    """Whether an object is a producer: it has `__dlpack__` and `__dlpack_device__`."""
    return hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")


def export(
    dtype: str,
    shape: tuple[int, ...],
    view: memoryview,
    *,
    max_version: tuple[int, int] | None,
    dl_device: tuple[Any, int] | None,
    copy: bool | None,
) -> Any:
    """The capsule for a tensor in host memory; made by numpy, or by torch for the dtypes that numpy lacks.

    Args:
        dtype: a key of `tailrace.paramserver.manifest.DTYPES`.
        shape: dimensions.
        view: its bytes, flat. The capsule keeps them alive.
        max_version: the newest DLPack that the consumer knows; None is before 1.0.
        dl_device: the device that the consumer asks for; only host memory can be had.
        copy: True gives the consumer memory of its own.

    Raises:
        ExportImpossible: another device is asked for, the library that can make the capsule is missing, or memory is
            read-only and the consumer cannot be told.
    """
    if dl_device is not None and (int(dl_device[0]), int(dl_device[1])) != CPU:
        raise ExportImpossible(f"found a tensor in host memory, and was asked for DLPack device {tuple(dl_device)}")
    told = max_version is not None and max_version[0] >= 1
    if view.readonly and not told and not copy:
        raise ExportImpossible(
            "found read-only memory and a consumer older than DLPack 1.0, which cannot be told so; ask with copy=True"
        )
    options = {"max_version": max_version, "copy": copy}
    array = None if dtype in _NOT_NUMPY else _numpy_array(dtype, shape, view)
    if array is not None:
        try:
            return array.__dlpack__(**options)
        except TypeError:  # numpy before 2.1 knows neither option; torch may be there
            pass
    try:
        import torch
    except ImportError as error:
        needs = "torch" if dtype in _NOT_NUMPY else "torch or numpy"
        raise ExportImpossible(f"exporting {dtype} needs {needs}; pip install 'tailrace-paramserver[torch]'") from error
    capsule = flat_torch(view).view(getattr(torch, dtype)).reshape(shape).__dlpack__(**options)
    if view.readonly and not copy:
        _mark_read_only(capsule)
    return capsule


def on_host(name: str, value: Any) -> bool:
    """Whether a producer's memory can be read by this processor as it is.

    Raises:
        ManifestInvalid: the producer does not say where its memory is.
    """
    try:
        return int(value.__dlpack_device__()[0]) in _HOST
    except (*_FOREIGN, IndexError) as error:
        raise ManifestInvalid(f"{name!r}: found a {type(value).__name__} without a DLPack device: {error}") from error


def numpy_view(value: Any) -> Any:
    """A producer's host memory as a numpy array without a copy, or None if there is no numpy or it lacks the dtype."""
    try:
        import numpy
    except ImportError:
        return None
    if isinstance(value, numpy.ndarray):
        return value
    try:
        return numpy.from_dlpack(value)
    except _FOREIGN:
        return None  # torch may know the dtype; if not, it raises a clear error


def torch_view(name: str, value: Any) -> Any:
    """A producer's memory, on any device, as a torch tensor without a copy.

    Raises:
        ManifestInvalid: torch is missing, or refuses, or would end the process over a negative stride (torch 2.13).
    """
    kind = type(value).__name__
    where = int(value.__dlpack_device__()[0])
    device = _HOST.get(where) or _DEVICES.get(where, f"DLPack device {where}")
    try:
        import torch
    except ImportError as error:
        raise ManifestInvalid(
            f"{name!r}: found a {kind} in {device} memory, which torch must read; "
            "pip install 'tailrace-paramserver[torch]', or hand over a buffer"
        ) from error
    array = numpy_view(value) if where in _HOST else None
    if array is not None and min(array.strides, default=0) < 0:
        raise ManifestInvalid(f"{name!r}: found a {kind} with strides {array.strides}, expected none below 0 for torch")
    try:
        return torch.from_dlpack(value)
    except _FOREIGN as error:
        raise ManifestInvalid(
            f"{name!r}: found a {kind} in {device} memory that torch cannot read: {error}; wrap its bytes in RawTensor"
        ) from error


def _numpy_array(dtype: str, shape: tuple[int, ...], view: memoryview) -> Any:
    try:
        import numpy
    except ImportError:
        return None
    if not view.nbytes:
        return numpy.empty(shape, dtype)
    return numpy.frombuffer(view, dtype).reshape(shape)


def _mark_read_only(capsule: Any) -> None:
    """Set the flag, which torch cannot do itself. Until the capsule is consumed, this code owns its contents."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    address = pointer(capsule, b"dltensor_versioned")
    if address is None:
        raise ExportImpossible("torch made a capsule without contents")
    _Versioned.from_address(address).flags |= _READ_ONLY
