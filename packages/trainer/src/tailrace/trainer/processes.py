"""The process group that the trainer's ranks share: gloo on CPU, nccl (and gloo beside it) on CUDA."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from tailrace.trainer.errors import DeviceError, ProcessGroupError, TrainerConfigError


def resolve_device(name: str, rank: int) -> torch.device:
    """The device of a rank; ``"auto"`` takes CUDA if available.

    Raises:
        DeviceError: CUDA was asked for and is not available.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceError("found no CUDA device, expected one since device = 'cuda'; set device = 'cpu' or 'auto'")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def join(rank: int, world_size: int, rendezvous: str | None, device: torch.device, timeout_s: float) -> bool:
    """Join the process group, or use an existing one.

    Args:
        rank: this rank, 0 to ``world_size - 1``.
        world_size: number of ranks.
        rendezvous: ``file://`` or ``tcp://`` URL, the same for all ranks; None for a world of one.
        device: this rank's device.
        timeout_s: deadline of the rendezvous and of every collective operation.

    Returns:
        Whether this call created the group, so that the caller must leave it.

    Raises:
        TrainerConfigError: `rank`, `world_size` and `rendezvous` do not fit together.
        ProcessGroupError: a group of another shape exists already.
    """
    if not 0 <= rank < world_size:
        raise TrainerConfigError(f"found rank {rank} of {world_size}, expected 0 <= rank < world_size")
    if dist.is_initialized():
        found = (dist.get_rank(), dist.get_world_size())
        if found != (rank, world_size):
            raise ProcessGroupError(
                f"found this process to be rank {found[0]} of {found[1]} already, expected {rank} of {world_size}; "
                "use a fresh process"
            )
        return False
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    timeout = timedelta(seconds=timeout_s)
    if rendezvous is None:
        if world_size != 1:
            raise TrainerConfigError(f"found no rendezvous for {world_size} ranks, expected a file:// or tcp:// URL")
        _stay_on_loopback()
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
        return True
    if not rendezvous.startswith(("file://", "tcp://")):
        raise TrainerConfigError(f"found the rendezvous {rendezvous!r}, expected a file:// or tcp:// URL")
    if rendezvous.startswith(("file://", "tcp://127.", "tcp://localhost", "tcp://[::1]")):
        _stay_on_loopback()
    dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world_size, timeout=timeout)
    return True


def _stay_on_loopback() -> None:
    # By default gloo binds to the address that the host name resolves to.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
