"""Writes checkpoints of the trainer's whole state, copied to host memory first, then written in the background; restores them.

    save ──copy──► host memory ──► a thread: state-R-of-N ──► all ranks' shards are there ──► full weights ──► rank 0 completes
      waits only if two are under way                         (ranks meet in the file system)

Full weights are put together from the shards that the ranks wrote, so that no rank gathers them while training waits.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tailrace.trainer.checkpoint_files import (
    complete,
    copy_model_files,
    partial_directory,
    state_file,
    sync,
    verify,
    weights_file,
)
from tailrace.trainer.errors import CheckpointError, CheckpointTimeoutError
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


class HostCopies:
    """Memory for copies of tensors. It grows to as many copies as are held at once, and stays.

    `take` is for one thread; any thread may call `give_back`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[dict[str, Tensor]] = []

    def take(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy tensors of any device into host memory that nobody else uses until it is given back.

        Memory for other names, shapes or dtypes than these is freed.
        """
        with self._lock:
            memory = self._free.pop() if self._free else {}
        if not _fits(memory, tensors):
            memory = {name: _like(tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            memory[name].copy_(tensor, non_blocking=True)
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        return memory

    def give_back(self, memory: dict[str, Tensor]) -> None:
        """Let a later copy take the place of this one."""
        with self._lock:
            self._free.append(memory)


def _fits(memory: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> bool:
    return memory.keys() == tensors.keys() and all(
        memory[name].shape == tensor.shape and memory[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


_POLL_S = 0.01
MOST_PENDING = 2
"""Checkpoints that may be under way at once, each with a copy of the state in host memory; one more waits for the oldest."""


class CheckpointWriter:
    """Writes checkpoints in the order in which they were begun, on its own thread.

    Each rank of the first cell writes its shards, and every rank the full weights of its share of the parameters. Once every
    rank's files are there, rank 0 completes the directory; ranks meet in the file system, which all must share, so that no
    collective runs beside training.

    Args:
        model_path: directory with the model's configuration and tokenizer.
        state: what is saved.
        rank, world_size: this process among the ranks.
        timeout_s: how long a further save waits for room, and a rank for the files of the others.
    """

    def __init__(self, model_path: Path, state: ShardedPolicy, rank: int, world_size: int, timeout_s: float) -> None:
        self._model_path = model_path
        self._state = state
        self._rank = rank
        self._world_size = world_size
        self._timeout_s = timeout_s
        self._copies = HostCopies()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._pending: deque[tuple[Path, int, Future[Path]]] = deque()

    def save(self, directory: Path, version: int) -> Future[Path]:
        """Begin to write this rank's part. Returns once it is copied to host memory; the future waits until it is durable.

        Raises:
            CheckpointTimeoutError: two are under way, or one of the same name, and it was not durable at the deadline.
        """
        from safetensors import SafetensorError

        directory = directory.absolute()
        self._make_room(directory)
        partial = partial_directory(directory)
        unmade = _make_anew(partial) if self._rank == 0 else None  # others wait: it is raised behind the barrier
        dist.barrier()
        shards = self._copies.take(self._tensors())
        steps, cells = self._state.steps, self._state.cells
        manifest = {"version": version, "steps": steps, "world_size": self._world_size, "cells": cells}

        def write() -> Path:
            try:
                if unmade is not None:
                    raise unmade
                self._write(directory, partial, shards, manifest)
            except (OSError, SafetensorError) as error:
                self._give_up(partial)
                raise CheckpointError(f"{directory}: the checkpoint could not be written: {error}") from error
            except BaseException:  # the future hands it to whoever waits
                self._give_up(partial)
                raise
            finally:
                self._copies.give_back(shards)
            return directory

        future = self._thread.submit(write)
        self._pending.append((directory, version, future))
        return future

    def close(self) -> None:
        """Wait until the checkpoints under way are written.

        Raises:
            CheckpointTimeoutError: one is not at the deadline. It is left to its thread.
        """
        self._thread.shutdown(wait=False)
        self._wait_until(lambda: not self._pending)

    def _make_room(self, directory: Path) -> None:
        """Two checkpoints of one name would write the same files."""
        self._wait_until(
            lambda: len(self._pending) < MOST_PENDING and directory not in [one for one, _, _ in self._pending]
        )

    def _wait_until(self, enough: Callable[[], bool]) -> None:
        while self._pending and (self._pending[0][2].done() or not enough()):
            _, version, future = self._pending[0]
            try:
                future.exception(self._timeout_s)
            except FutureTimeoutError as error:
                raise CheckpointTimeoutError(
                    f"waited {self._timeout_s} s for checkpoint-{version} to become durable; is the disk full or slow?"
                ) from error
            self._pending.popleft()

    def _give_up(self, partial: Path) -> None:
        if self._rank == 0:
            shutil.rmtree(partial, ignore_errors=True)  # free its space, since the disk may be full

    def _tensors(self) -> dict[str, Tensor]:
        """The shards and moments, which the first cell's ranks write, and this rank's random state."""
        state = self._state
        tensors: dict[str, Tensor] = {}
        for name, shard in state.shards.items() if state.cell == 0 else ():
            tensors[f"parameter/{name}"] = shard
            for moment in ("exp_avg", "exp_avg_sq"):
                if moment in state.optimizer.state.get(shard, {}):
                    tensors[f"{moment}/{name}"] = state.optimizer.state[shard][moment]
        tensors["random/cpu"] = torch.get_rng_state()
        if state.device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(state.device)
        return tensors

    def _write(self, directory: Path, partial: Path, shards: dict[str, Tensor], manifest: dict[str, Any]) -> None:
        from safetensors.torch import save_file

        mine = partial / state_file(self._rank, self._world_size)
        _put(mine, lambda growing: save_file(shards, str(growing)))
        owners = weight_owners(self._state, self._world_size)
        owned = [name for name, owner in owners.items() if owner == self._rank]
        if owned or self._rank == 0:
            full = self._full_weights(partial, shards, owned)
            _put(partial / weights_file(self._rank, self._world_size), lambda growing: write_weights(growing, full))
        if self._rank:
            return
        copy_model_files(self._model_path, partial, str(self._state.dtype).removeprefix("torch."))
        if self._world_size > 1:
            _write_index(partial, self._state, self._world_size)
        everyone = range(self._world_size)
        self._await(partial, (state_file(rank, self._world_size) for rank in everyone))
        self._await(partial, (weights_file(rank, self._world_size) for rank in sorted({0, *owners.values()})))
        complete(partial, directory, manifest)

    def _full_weights(self, partial: Path, shards: dict[str, Tensor], names: list[str]) -> dict[str, Tensor]:
        """Whole parameters in the dtype of the forward pass, from the shards of the first cell's ranks."""
        from safetensors import safe_open

        state = self._state
        if state.ranks == 1 and state.cell == 0:
            return {name: shards[f"parameter/{name}"].to(state.dtype) for name in names}
        files = [state_file(rank, self._world_size) for rank in range(state.ranks)]
        self._await(partial, files)
        opened: list[Any] = [safe_open(str(partial / name), framework="pt") for name in files]
        return {
            name: torch.cat([file.get_tensor(f"parameter/{name}") for file in opened]).to(state.dtype) for name in names
        }

    def _await(self, partial: Path, names: Iterable[str]) -> None:
        """Wait for files that other ranks write."""
        deadline = time.monotonic() + self._timeout_s
        for name in names:
            while not (partial / name).exists():
                if not partial.exists():
                    raise CheckpointError(f"{partial}: another rank gave the checkpoint up")
                if time.monotonic() > deadline:
                    raise CheckpointTimeoutError(
                        f"waited {self._timeout_s} s for {name} of another rank; do all ranks share {partial}?"
                    )
                time.sleep(_POLL_S)


def _put(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file so that others see a whole one or none."""
    growing = path.parent / f".{path.name}"
    write(growing)
    sync(growing)
    os.replace(growing, path)  # noqa: PTH105 - replace, so that others see a whole file


def _make_anew(partial: Path) -> OSError | None:
    try:
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
    except OSError as error:
        return error
    return None


def export_model(directory: Path, model_path: Path, state: ShardedPolicy, rank: int) -> None:
    """Write the whole model in Hugging Face form, from rank 0. Every rank calls it."""
    full = {}
    for name, tensor in state.full_parameters():
        if rank == 0:
            full[name] = tensor.to("cpu", state.dtype, copy=True).contiguous()
    if rank == 0:
        directory.mkdir(parents=True, exist_ok=True)
        copy_model_files(model_path, directory, str(state.dtype).removeprefix("torch."))
        write_weights(directory / weights_file(0, 1), full)


def weight_owners(state: ShardedPolicy, world_size: int) -> dict[str, int]:
    """Which rank writes which parameter in full: the largest first, each to the rank with the least so far."""
    loads, owners = [0] * world_size, dict[str, int]()
    for name, parameter in sorted(state.parameters.items(), key=lambda item: (-item[1].numel(), item[0])):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += parameter.numel()
    return owners


def write_weights(path: Path, full: dict[str, Tensor]) -> None:
    """Write full weights under Hugging Face names, and sync them."""
    from safetensors.torch import save_file

    save_file(full, str(path), metadata={"format": "pt"})
    sync(path)


def _write_index(directory: Path, state: ShardedPolicy, world_size: int) -> None:
    """Where Hugging Face looks for the weights of a model in several files."""
    files = {name: weights_file(owner, world_size) for name, owner in weight_owners(state, world_size).items()}
    total = sum(parameter.numel() for parameter in state.parameters.values()) * state.dtype.itemsize
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
