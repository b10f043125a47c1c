"""Checkpoints of the trainer's whole state: copied to host memory first, then written in the background."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tailrace.trainer.checkpoint_files import (
    complete,
    copy_model_files,
    partial_directory,
    sync,
    verify,
)
from tailrace.trainer.errors import CheckpointError, CheckpointTimeoutError, TrainerError
from tailrace.trainer.sharded import ShardedPolicy

_POLL_S = 0.01


class CheckpointWriter:
    """Writes one checkpoint at a time, on its own thread.

    Each rank of the first cell writes its shards, and every rank the full weights of its share of the parameters. Once every
    rank's files are there, rank 0 completes the directory; ranks meet in the file system, which all must share, so that no
    collective runs beside training.
    """

    def __init__(self, model_path: Path, state: ShardedPolicy, rank: int, world_size: int, timeout_s: float) -> None:
        self._model_path = model_path
        self._state = state
        self._rank = rank
        self._world_size = world_size
        self._timeout_s = timeout_s
        self._thread: threading.Thread | None = None

    def save(self, directory: Path, version: int) -> Future[Path]:
        """Begin to write this rank's part. Returns once it is copied to host memory; the future waits until it is durable."""
        self._wait_for_previous()
        directory = directory.absolute()
        partial = partial_directory(directory)
        unmade = _make_anew(partial) if self._rank == 0 else None  # others wait: it is raised behind the barrier
        dist.barrier()
        shards = self._snapshot()
        full = _full_weights(self._state, self._rank, _owners(self._state, self._world_size))
        steps, cells = self._state.steps, self._state.cells
        manifest = {"version": version, "steps": steps, "world_size": self._world_size, "cells": cells}
        future: Future[Path] = Future()

        def write() -> None:
            try:
                if unmade is not None:
                    raise unmade
                self._write(directory, partial, shards, full, manifest)
            except BaseException as error:  # the future hands it to whoever waits
                if self._rank == 0:
                    shutil.rmtree(partial, ignore_errors=True)  # free its space, since the disk may be full
                future.set_exception(_named(error, directory))
            else:
                future.set_result(directory)

        self._thread = threading.Thread(target=write, name=f"checkpoint-{version}")
        self._thread.start()
        return future

    def close(self) -> None:
        """Wait until the checkpoint under way is written."""
        self._wait_for_previous()

    def _wait_for_previous(self) -> None:
        if self._thread is None:
            return
        self._thread.join(self._timeout_s)
        if self._thread.is_alive():
            raise CheckpointTimeoutError(
                f"waited {self._timeout_s} s for {self._thread.name} to become durable; is the disk full or slow?"
            )
        self._thread = None

    def _snapshot(self) -> dict[str, Tensor]:
        """The shards and moments, which the first cell's ranks write, and this rank's random state."""
        state = self._state
        tensors: dict[str, Tensor] = {}
        for name, shard in state.shards.items() if state.cell == 0 else ():
            tensors[f"parameter/{name}"] = shard.to("cpu", copy=True)
            for moment in ("exp_avg", "exp_avg_sq"):
                if moment in state.optimizer.state.get(shard, {}):
                    tensors[f"{moment}/{name}"] = state.optimizer.state[shard][moment].to("cpu", copy=True)
        tensors["random/cpu"] = torch.get_rng_state()
        if state.device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(state.device)
        return tensors

    def _write(
        self,
        directory: Path,
        partial: Path,
        shards: dict[str, Tensor],
        full: dict[str, Tensor],
        manifest: dict[str, Any],
    ) -> None:
        from safetensors.torch import save_file

        if full or self._rank == 0:
            _write_weights(partial / _weights_file(self._rank, self._world_size), full)
        mine = partial / _state_file(self._rank, self._world_size)  # the last file of a rank
        growing = partial / f".{mine.name}"
        save_file(shards, str(growing))
        sync(growing)
        os.replace(growing, mine)  # noqa: PTH105 - replace, so that others see a whole file
        if self._rank:
            return
        copy_model_files(self._model_path, partial, str(self._state.dtype).removeprefix("torch."))
        if self._world_size > 1:
            _write_index(partial, self._state, self._world_size)
        deadline = time.monotonic() + self._timeout_s
        for rank in range(self._world_size):
            awaited = partial / _state_file(rank, self._world_size)
            while not awaited.exists():
                if time.monotonic() > deadline:
                    raise CheckpointTimeoutError(
                        f"waited {self._timeout_s} s for {awaited.name} of rank {rank}; do all ranks share {partial}?"
                    )
                time.sleep(_POLL_S)
        complete(partial, directory, manifest)


def _make_anew(partial: Path) -> OSError | None:
    try:
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
    except OSError as error:
        return error
    return None


def _named(error: BaseException, directory: Path) -> BaseException:
    """An error with the name of the checkpoint, which a file system's or a library's error lacks."""
    from safetensors import SafetensorError

    if isinstance(error, TrainerError) or not isinstance(error, OSError | SafetensorError):
        return error
    named = CheckpointError(f"{directory}: the checkpoint could not be written: {error}")
    named.__cause__ = error
    return named


def export_model(directory: Path, model_path: Path, state: ShardedPolicy, rank: int) -> None:
    """Write the whole model in Hugging Face form, from rank 0. Every rank calls it."""
    full = _full_weights(state, rank, _owners(state, 1))
    if rank == 0:
        directory.mkdir(parents=True, exist_ok=True)
        copy_model_files(model_path, directory, str(state.dtype).removeprefix("torch."))
        _write_weights(directory / _weights_file(0, 1), full)


def _owners(state: ShardedPolicy, world_size: int) -> dict[str, int]:
    """Which rank writes which parameter in full: the largest first, each to the rank with the least so far."""
    loads, owners = [0] * world_size, dict[str, int]()
    for name, parameter in sorted(state.parameters.items(), key=lambda item: (-item[1].numel(), item[0])):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += parameter.numel()
    return owners


def _full_weights(state: ShardedPolicy, rank: int, owners: dict[str, int]) -> dict[str, Tensor]:
    """Copies of the full weights that this rank writes, in host memory. All ranks take part in gathering, one at a time."""
    full = {}
    for name, tensor in state.full_parameters():
        if owners[name] == rank:
            full[name] = tensor.to("cpu", state.dtype, copy=True).contiguous()
    return full


def _write_weights(path: Path, full: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(full, str(path), metadata={"format": "pt"})
    sync(path)


def _write_index(directory: Path, state: ShardedPolicy, world_size: int) -> None:
    """Where Hugging Face looks for the weights of a model in several files."""
    files = {name: _weights_file(owner, world_size) for name, owner in _owners(state, world_size).items()}
    total = sum(parameter.numel() for parameter in state.parameters.values()) * state.dtype.itemsize
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _weights_file(rank: int, world_size: int) -> str:
    return "model.safetensors" if world_size == 1 else f"model-{rank + 1:05d}-of-{world_size:05d}.safetensors"


def restore(directory: Path, state: ShardedPolicy, rank: int, world_size: int) -> int:
    """Load a checkpoint into this rank. Returns its version."""
    from safetensors import safe_open

    manifest = verify(directory)
    saved, steps = manifest.get("world_size"), manifest.get("steps")
    if not isinstance(saved, int) or not isinstance(steps, int) or saved < 1:
        raise CheckpointError(f"{directory}: found no trainer state, expected a checkpoint of a trainer")
    shards = [_state_file(r, saved) for r in range(saved)]
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


def _state_file(rank: int, world_size: int) -> str:
    return f"state-{rank:05d}-of-{world_size:05d}.safetensors"


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
