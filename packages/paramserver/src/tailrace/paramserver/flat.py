"""A buffer as a flat torch tensor that shares its memory."""

from __future__ import annotations

import warnings
from typing import Any

from tailrace.contracts import extra


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
