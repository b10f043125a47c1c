"""Memory of an accelerator as a transport sees it: an address and a size, without a copy.

Any array with DLPack (`__dlpack__`: torch, CuPy, JAX, Numba) gives it. Only `ucx` and `nixl` can export it and read into it.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

from tailrace.paramserver.errors import TransportUnavailable

_CUDA, _CUDA_MANAGED = 2, 13  # kDLCUDA, kDLCUDAManaged


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A contiguous piece of CUDA memory. It is an `Exportable` without a view.

    Args:
        name: how messages call it.
        address: the address of its first byte on the device.
        nbytes: its size.
        device: the number of the device.
        owner: keeps the memory alive.
    """

    name: str
    address: int
    nbytes: int
    device: int
    owner: Any

    @property
    def view(self) -> memoryview:
        """Empty: the host cannot read it."""
        return memoryview(b"")

    @property
    def fd(self) -> int:
        """None."""
        return -1

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3, "strides": None}

    def part(self, offset: int, nbytes: int) -> DeviceMemory:
        """A range of it. ValueError if it sticks out."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ValueError(f"found a range of {nbytes} bytes at {offset}, expected it within {self.nbytes}")
        return DeviceMemory(self.name, self.address + offset, nbytes, self.device, self.owner)


def device_memory(array: Any, name: str = "device memory") -> DeviceMemory:
    """The memory of an array on a CUDA device, through DLPack and without a copy.

    Transports read and write it on no stream of the array's library. What torch has queued on its current stream for a tensor
    is awaited here; synchronise another library before, and every library after a later change.

    Raises:
        TransportUnavailable: it has no DLPack, is on another device, or has gaps.
    """
    try:
        kind, device = array.__dlpack_device__()
    except AttributeError as error:
        raise TransportUnavailable(
            f"{name!r}: found a {type(array).__name__}, expected an array with DLPack"
        ) from error
    if kind not in (_CUDA, _CUDA_MANAGED):
        raise TransportUnavailable(
            f"{name!r}: found an array on the DLPack device {int(kind)}, expected CUDA ({_CUDA})"
        )
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        with torch.cuda.device(int(device)):  # torch exports from the current device only
            torch.cuda.current_stream().synchronize()
            capsule = array.detach().__dlpack__()
    else:
        capsule = array.__dlpack__()
    address, nbytes = _extent(capsule, name)
    return DeviceMemory(name, address, nbytes, int(device), (array, capsule))


def _extent(capsule: Any, name: str) -> tuple[int, int]:
    """Address and size of a DLPack capsule's memory."""
    tensor = ctypes.cast(_pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
    expected, gaps = 1, False
    for axis in reversed(range(tensor.ndim)):
        size = tensor.shape[axis]
        gaps = gaps or (bool(tensor.strides) and size > 1 and tensor.strides[axis] != expected)
        expected *= size
    if gaps and expected:
        raise TransportUnavailable(f"{name!r}: found an array with gaps, expected a contiguous one")
    return int(tensor.data or 0) + tensor.byte_offset, expected * tensor.bits * tensor.lanes // 8


class _DLTensor(ctypes.Structure):
    """`DLTensor`, the first member of `DLManagedTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_pointer.restype = ctypes.c_void_p
