"""Loads a checkpoint of any number of ranks and cells into a rank. `checkpoint_writer` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tailrace.trainer.checkpoint_files import state_file, verify
from tailrace.trainer.errors import CheckpointError
from tailrace.trainer.sharded import ShardedPolicy


def restore(directory: Path, state: ShardedPolicy, rank: int, world_size: int) -> int:
    """Load a checkpoint into this rank. Returns its version."""
    from safetensors import safe_open

    manifest = verify(directory)
    saved, steps = manifest.get("world_size"), manifest.get("steps")
    if not isinstance(saved, int) or not isinstance(steps, int) or saved < 1:
        raise CheckpointError(f"{directory}: found no trainer state, expected a checkpoint of a trainer")
    shards = [state_file(r, saved) for r in range(saved)]
    held = saved // int(manifest.get("cells", 1))  # ranks of the first cell
    if missing := [name for name in shards if name not in manifest["files"]]:
        raise CheckpointError(f"found no {missing[0]} in {directory}; the checkpoint is damaged, use another")
    opened: list[Any] = [safe_open(str(directory / name), framework="pt") for name in shards]
    files = opened[:held]
    names = {key.removeprefix("parameter/") for key in files[0].keys() if key.startswith("parameter/")}  # noqa: SIM118
    if names != set(state.shards):
        odd = sorted(names ^ set(state.shards))[0]
        raise CheckpointError(f"{directory} is of another model: only one of the two has {odd!r}")
    state.reset_optimizer()
    has_moments = any(key.startswith("exp_avg/") for key in files[0].keys())  # noqa: SIM118
    for name, shard in state.shards.items():
        start = _first_row(state.parameters[name].shape, state.place, state.ranks)
        full_shape = tuple(state.parameters[name].shape)
        with torch.no_grad():
            shard.copy_(_rows(files, f"parameter/{name}", full_shape, start, shard))
        if has_moments:
            state.optimizer.state[shard] = {
                "step": torch.tensor(float(steps), dtype=torch.float32, device=shard.device),
                **{m: _rows(files, f"{m}/{name}", full_shape, start, shard) for m in ("exp_avg", "exp_avg_sq")},
            }
    state.steps = steps
    if saved == world_size:
        torch.set_rng_state(opened[rank].get_tensor("random/cpu"))
        if state.device.type == "cuda" and "random/cuda" in opened[rank].keys():  # noqa: SIM118
            torch.cuda.set_rng_state(opened[rank].get_tensor("random/cuda"), state.device)
    return int(manifest["version"])


def _first_row(shape: torch.Size, place: int, ranks: int) -> int:
    """The first row of a rank's shard within its cell: FSDP2 splits dimension 0 as ``torch.chunk`` does."""
    size = -(-shape[0] // ranks)
    return int(min(place * size, shape[0]))


def _rows(files: list[Any], key: str, full_shape: tuple[int, ...], start: int, like: Tensor) -> Tensor:
    """Rows ``start`` to ``start + len(like)`` of a tensor whose rows are split over `files`, on the device of `like`."""
    wanted = len(like)
    parts = []
    offset = 0
    for file in files:
        part = file.get_slice(key)
        shape = part.get_shape()
        if tuple(shape[1:]) != full_shape[1:]:
            raise CheckpointError(
                f"found {key} of shape {shape}, expected {list(full_shape)}: another model's checkpoint"
            )
        low, high = max(start, offset), min(start + wanted, offset + shape[0])
        if low < high:
            parts.append(part[low - offset : high - offset])
        offset += shape[0]
    if offset != full_shape[0]:
        raise CheckpointError(f"found {offset} rows of {key}, expected {full_shape[0]}: another model's checkpoint")
    return torch.cat(parts).to(like) if parts else torch.empty_like(like)
