"""Which device and dtype an engine runs on."""

from __future__ import annotations

from tailrace.rollout.errors import DeviceMissingError
from tailrace.rollout.options import EngineOptions


def resolve_device(options: EngineOptions) -> str:
    """``"cpu"`` or ``"cuda"``.

    Raises:
        DeviceMissingError: CUDA was asked for and this machine has none.
    """
    import torch

    available = torch.cuda.is_available()
    if options.device == "cuda" and not available:
        raise DeviceMissingError("found no CUDA device, expected one for device='cuda'; use device='cpu' or 'auto'")
    if options.device == "auto":
        return "cuda" if available else "cpu"
    return options.device


def resolve_dtype(options: EngineOptions, device: str) -> str:
    """The dtype's name: the chosen one, else float32 on CPU and bfloat16 on CUDA."""
    if options.dtype != "auto":
        return options.dtype
    return "bfloat16" if device == "cuda" else "float32"
