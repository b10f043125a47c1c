"""The protocol of a reader of tensor cores, and the choice of one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from tailrace.faulttol.tensor_cores.dcgm import Dcgm
from tailrace.faulttol.tensor_cores.nvml import Nvml


class TensorCores(Protocol):
    """Reads the tensor cores of some GPUs."""

    def busy(self) -> float:
        """The share of the time since the last call in which they worked, 0 to 1; of the GPU where it was the largest.

        Raises:
            UnreadableError: they cannot be read any more.
        """
        ...

    def close(self) -> None:
        """Read no more."""
        ...


def own_devices(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` gives this process, as numbers or UUIDs. Empty where it is not set.

    Without it all GPUs of the machine are visible, also those that others compute on, and their work would be taken for ours.
    """
    return tuple(one for one in environment.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "").split(",") if one)


def open_tensor_cores(devices: Sequence[str]) -> TensorCores | None:
    """A reader of the tensor cores of these GPUs; None where neither DCGM nor NVML can read them.

    Args:
        devices: number or UUID of each, as in ``CUDA_VISIBLE_DEVICES``.
    """
    if not devices:
        return None
    return Dcgm.opened(devices) or Nvml.opened(devices)
