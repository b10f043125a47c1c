"""Checkpoints of the trainer's whole state: copied to host memory at once, written in the background."""

from __future__ import annotations

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
    """Writes one checkpoint at a time on a thread of its own.

    Each rank writes its shards. Rank 0 also writes the full weights, and once every rank's file is there it completes the
    directory; ranks meet in the file system, which all must share, so that no collective runs beside training.
    """

    def __init__(self, model_path: Path, state: ShardedPolicy, rank: int, world_size: int, timeout_s: float) -> None:
        self._model_path = model_path
        self._state = state
        self._rank = rank
        self._world_size = world_size
        self._timeout_s = timeout_s
        self._thread: threading.Thread | None = None

    def save(self, directory: Path, version: int) -> Future[Path]:
        """See `TrainerWorker.save`."""
        self._wait_for_previous()
        directory = directory.absolute()
        partial = partial_directory(directory)
        unmade = _make_anew(partial) if self._rank == 0 else None  # others wait: it is raised behind the barrier
        dist.barrier()
        shards = self._snapshot()
        full = _full_weights(self._state, self._rank)
        manifest = {"version": version, "steps": self._state.steps, "world_size": self._world_size}
        future: Future[Path] = Future()

        def write() -> None:
            try:
                if unmade is not None:
                    raise unmade
                self._write(directory, partial, shards, full, manifest)
            except BaseException as error:  # it is handed to whoever waits
                if self._rank == 0:
                    shutil.rmtree(partial, ignore_errors=True)  # a disk that is full gets its room back
                future.set_exception(_named(error, directory))
            else:
                future.set_result(directory)

        self._thread = threading.Thread(target=write, name=f"checkpoint-{version}")
        self._thread.start()
        return future

    def close(self) -> None:
        """Wait for the checkpoint that is being written."""
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
        state = self._state
        tensors: dict[str, Tensor] = {}
        for name, shard in state.shards.items():
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

        mine = partial / _state_file(self._rank, self._world_size)
        growing = partial / f".{mine.name}"
        save_file(shards, str(growing))
        sync(growing)
        os.replace(growing, mine)  # noqa: PTH105 - replace, so that others see a whole file
        if self._rank:
            return
        _write_model(partial, self._model_path, full, self._state)
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
    """What a file system or a library says of a write does not name the checkpoint."""
    from safetensors import SafetensorError

    if isinstance(error, TrainerError) or not isinstance(error, OSError | SafetensorError):
        return error
    named = CheckpointError(f"{directory}: the checkpoint could not be written: {error}")
    named.__cause__ = error
    return named


def export_model(directory: Path, model_path: Path, state: ShardedPolicy, rank: int) -> None:
    """See `TrainerWorker.export`."""
    full = _full_weights(state, rank)
    if rank == 0:
        directory.mkdir(parents=True, exist_ok=True)
        _write_model(directory, model_path, full, state)


def _full_weights(state: ShardedPolicy, rank: int) -> dict[str, Tensor]:
    """Copies of the full weights in host memory, on rank 0; the others only take part in gathering them."""
    full = {}
    for name, tensor in state.full_parameters():
        if rank == 0:
            full[name] = tensor.to("cpu", state.dtype, copy=True).contiguous()
    return full


def _write_model(directory: Path, model_path: Path, full: dict[str, Tensor], state: ShardedPolicy) -> None:
    from safetensors.torch import save_file

    copy_model_files(model_path, directory, str(state.dtype).removeprefix("torch."))
    save_file(full, str(directory / "model.safetensors"), metadata={"format": "pt"})


def restore(directory: Path, state: ShardedPolicy, rank: int, world_size: int) -> int:
    """See `TrainerWorker.load`."""
    from safetensors import safe_open

    manifest = verify(directory)
    saved, steps = manifest.get("world_size"), manifest.get("steps")
    if not isinstance(saved, int) or not isinstance(steps, int) or saved < 1:
        raise CheckpointError(f"{directory}: found no state of a trainer in it, expected a checkpoint of one")
    shards = [_state_file(r, saved) for r in range(saved)]
    if missing := [name for name in shards if name not in manifest["files"]]:
        raise CheckpointError(f"found no {missing[0]} in {directory}; the checkpoint is damaged, use another")
    files: list[Any] = [safe_open(str(directory / name), framework="pt") for name in shards]
    names = {key.removeprefix("parameter/") for key in files[0].keys() if key.startswith("parameter/")}  # noqa: SIM118
    if names != set(state.shards):
        odd = sorted(names ^ set(state.shards))[0]
        raise CheckpointError(f"{directory} is of another model: {odd!r} is in one of the two only")
    state.reset_optimizer()
    has_moments = any(key.startswith("exp_avg/") for key in files[0].keys())  # noqa: SIM118
    for name, shard in state.shards.items():
        start = _first_row(state.parameters[name].shape, rank, world_size)
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
        torch.set_rng_state(files[rank].get_tensor("random/cpu"))
        if state.device.type == "cuda" and "random/cuda" in files[rank].keys():  # noqa: SIM118
            torch.cuda.set_rng_state(files[rank].get_tensor("random/cuda"), state.device)
    return int(manifest["version"])


def _state_file(rank: int, world_size: int) -> str:
    return f"state-{rank:05d}-of-{world_size:05d}.safetensors"


def _first_row(shape: torch.Size, rank: int, world_size: int) -> int:
    """The first row of a rank's shard: FSDP2 splits dimension 0 as ``torch.chunk`` does."""
    size = -(-shape[0] // world_size)
    return int(min(rank * size, shape[0]))


def _rows(files: list[Any], key: str, full_shape: tuple[int, ...], start: int, like: Tensor) -> Tensor:
    """Rows ``start`` to ``start + len(like)`` of a tensor whose rows are spread over `files`, on the device of `like`."""
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
    return torch.cat(parts).to(like.device) if parts else torch.empty_like(like)
