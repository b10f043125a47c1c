"""Writes checkpoints of the trainer's whole state, copied to host memory first, then written in the background; restores them.

    save ──copy──► host memory ──► a thread: state-R-of-N ──► all ranks' shards are there ──► full weights ──► rank 0 completes
      waits only if two are under way                         (ranks meet in the file system)

Full weights are put together from the shards that the ranks wrote, so that no rank gathers them while training waits.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tailrace.trainer.adapters import ADAPTER_CONFIG, adapter_config, described
from tailrace.trainer.checkpoint_files import (
    complete,
    copy_model_files,
    partial_directory,
    state_file,
    sync,
    verify,
    weights_file,
)
from tailrace.trainer.config import AdapterConfig
from tailrace.trainer.errors import CheckpointError, CheckpointTimeoutError
from tailrace.trainer.sharded_model import MOMENTS, ShardedModel
from tailrace.trainer.weights_file import ADAPTER_FILE, weights_sha256


def restore(
    directory: Path, model: ShardedModel, rank: int, world_size: int, base: Path, *, critic: ShardedModel | None = None
) -> int:
    """Load a checkpoint of any backend into this rank. Returns its version. Collective.

    Args:
        directory: the checkpoint.
        model: what gets its state.
        rank, world_size: this process among the ranks.
        base: the directory that the model was loaded from, which an adapter's checkpoint names by its digest.
        critic: the critic's model, which gets its state too; None without one.
    """
    from safetensors import safe_open

    manifest = verify(directory)
    _check_adapter(manifest, directory, model, base)
    _check_critic(manifest, directory, critic)
    ranks, steps = manifest.get("world_size"), manifest.get("steps")
    if not isinstance(ranks, int) or not isinstance(steps, int) or ranks < 1:
        raise CheckpointError(f"{directory}: found no trainer state, expected a checkpoint of a trainer")
    names = [state_file(r, ranks) for r in range(ranks)]
    if missing := [name for name in names if name not in manifest["files"]]:
        raise CheckpointError(f"found no {missing[0]} in {directory}; the checkpoint is damaged, use another")
    files: list[Any] = [safe_open(str(directory / name), framework="pt") for name in names]
    files_of_state = files[: ranks // int(manifest.get("cells", 1))]  # ranks of the first cell
    found = [(model, _StateFiles(files_of_state, steps))]
    if critic is not None:
        found.append((critic, _StateFiles(files_of_state, int(manifest["critic"]["steps"]), _OF_CRITIC)))
    for one, saved in found:
        if saved.names != set(one.shapes):
            odd = sorted(saved.names ^ set(one.shapes))[0]
            raise CheckpointError(f"{directory} is of another model: only one of the two has {odd!r}")
    for one, saved in found:
        one.restore(saved)
    if ranks == world_size:
        torch.set_rng_state(files[rank].get_tensor("random/cpu"))
        if model.device.type == "cuda" and "random/cuda" in files[rank].keys():  # noqa: SIM118
            torch.cuda.set_rng_state(files[rank].get_tensor("random/cuda"), model.device)
    return int(manifest["version"])


def _check_critic(manifest: dict[str, Any], directory: Path, critic: ShardedModel | None) -> None:
    """Refuse a checkpoint with a critic where there is none, and one without where there is one. Nothing was changed."""
    there = isinstance(manifest.get("critic"), dict)
    if there != (critic is not None):
        words = ("with a critic", "without one")
        found, expected = words if there else reversed(words)
        raise CheckpointError(f"{directory}: found a checkpoint {found}, expected one {expected}; nothing was changed")


def _check_adapter(manifest: dict[str, Any], directory: Path, model: ShardedModel, base: Path) -> None:
    """Refuse a checkpoint of another adapter, or of another base. Nothing was changed."""
    config, found = model.config.adapter, manifest.get("adapter")
    expected = described(config) if config.rank else None
    if found != expected:
        words = ["no adapter" if one is None else "an adapter of " + _listed(one) for one in (found, expected)]
        raise CheckpointError(
            f"{directory}: found a checkpoint of {words[0]}, expected {words[1]}; nothing was changed"
        )
    if expected is not None and manifest["base"]["sha256"] != (digest := weights_sha256(base)):
        raise CheckpointError(
            f"{directory}: found an adapter of a base with the digest {manifest['base']['sha256']}, expected that of {base}, "
            f"{digest}; nothing was changed"
        )


def _listed(settings: dict[str, Any]) -> str:
    targets = settings["targets"]
    names = targets if isinstance(targets, str) else ", ".join(targets)
    return f"rank {settings['rank']}, alpha {settings['alpha']} on {names}"


_OF_CRITIC = "critic/"


class _StateFiles:
    """Tensors whose rows are split over files.

    Args:
        files: the files, opened.
        steps: optimizer steps of the model.
        prefix: what the names of its tensors begin with.
    """

    def __init__(self, files: list[Any], steps: int, prefix: str = "") -> None:
        self._files, self.steps, self._prefix = files, steps, prefix
        mine = (key.removeprefix(prefix) for key in files[0].keys() if key.startswith(prefix))  # noqa: SIM118
        keys = [key.partition("/") for key in mine]
        self.names = {name for kind, _, name in keys if kind == "parameter"}
        self.has_moments = any(kind == MOMENTS[0] for kind, _, _ in keys)

    def rows(self, kind: str, name: str, rows: slice, like: Tensor) -> Tensor:
        """See `SavedState`."""
        parts, offset, key = [], 0, f"{self._prefix}{kind}/{name}"
        start, stop = rows.start or 0, sys.maxsize if rows.stop is None else rows.stop
        for file in self._files:
            part = file.get_slice(key)
            count = part.get_shape()[0]
            low, high = max(start, offset), min(stop, offset + count)
            if low < high:
                parts.append(part[low - offset : high - offset])
            offset += count
        found = torch.cat(parts).to(like) if parts else torch.empty_like(like)
        if found.shape != like.shape:
            raise CheckpointError(
                f"found rows {start} to {min(stop, offset)} of {key} of shape {list(found.shape)}, expected "
                f"{list(like.shape)}: another model's checkpoint"
            )
        return found


class HostCopies:
    """Memory for copies of tensors. It grows to as many copies as are held at once, and stays.

    `take` is for one thread; any thread may call `give_back`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[dict[str, Tensor]] = []

    def take(self, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Copy tensors of any device into host memory that nobody else uses until it is given back.

        Memory for other names, shapes or dtypes than these is freed.
        """
        with self._lock:
            free = self._free.pop() if self._free else {}
        memory, on_device = dict[str, Tensor](), False
        for name, tensor in tensors:
            old = free.pop(name, None)
            fits = old is not None and old.shape == tensor.shape and old.dtype == tensor.dtype
            memory[name] = old if old is not None and fits else _like(tensor)
            memory[name].copy_(tensor, non_blocking=True)
            on_device |= tensor.is_cuda
        if on_device:
            torch.cuda.synchronize()
        return memory

    def give_back(self, memory: dict[str, Tensor]) -> None:
        """Let a later copy take the place of this one."""
        with self._lock:
            self._free.append(memory)


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
        model: what is saved.
        rank, world_size: this process among the ranks.
        timeout_s: how long a further save waits for room, and a rank for the files of the others.
        critic: the critic's model, whose state is saved beside the policy's; None without one.
    """

    def __init__(
        self,
        model_path: Path,
        model: ShardedModel,
        rank: int,
        world_size: int,
        timeout_s: float,
        *,
        critic: ShardedModel | None = None,
    ) -> None:
        self._model_path = model_path
        self._model, self._critic = model, critic
        self._adapter = model.config.adapter if model.config.adapter.rank else None
        self._base_sha256 = ""
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
        steps, cells = self._model.steps, self._model.cells
        manifest: dict[str, Any] = {"version": version, "steps": steps, "world_size": self._world_size, "cells": cells}
        if self._critic is not None:
            manifest["critic"] = {"steps": self._critic.steps}

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

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The rows of parameters and moments, which the first cell's ranks write, and this rank's random state."""
        yield from self._model.state()
        if self._critic is not None:
            yield from ((_OF_CRITIC + name, tensor) for name, tensor in self._critic.state())
        yield "random/cpu", torch.get_rng_state()
        if self._model.device.type == "cuda":
            yield "random/cuda", torch.cuda.get_rng_state(self._model.device)

    def _write(self, directory: Path, partial: Path, shards: dict[str, Tensor], manifest: dict[str, Any]) -> None:
        from safetensors.torch import save_file

        mine = partial / state_file(self._rank, self._world_size)
        _put(mine, lambda growing: save_file(shards, str(growing)))
        owners = self._owners()
        owned = [name for name, owner in owners.items() if owner == self._rank]
        if owned or self._rank == 0:
            full = self._full_weights(partial, shards, owned)
            _put(partial / self._weights_file(self._rank), lambda growing: write_weights(growing, full))
        if self._rank:
            return
        copy_model_files(self._model_path, partial, str(self._model.dtype).removeprefix("torch."))
        if self._adapter is not None:
            manifest |= self._describe_adapter(partial, self._adapter)
        elif self._world_size > 1:
            _write_index(partial, self._model, self._world_size)
        everyone = range(self._world_size)
        self._await(partial, (state_file(rank, self._world_size) for rank in everyone))
        self._await(partial, map(self._weights_file, sorted({0, *owners.values()})))
        complete(partial, directory, manifest)

    def _owners(self) -> dict[str, int]:
        """Which rank writes which parameter in full. An adapter is small: the first rank writes it."""
        if self._adapter is not None:
            return dict.fromkeys(self._model.shapes, 0)
        return weight_owners(self._model, self._world_size)

    def _weights_file(self, rank: int) -> str:
        return weights_file(rank, self._world_size) if self._adapter is None else ADAPTER_FILE

    def _describe_adapter(self, partial: Path, adapter: AdapterConfig) -> dict[str, Any]:
        """Write PEFT's settings. Returns what the manifest says of the adapter and its base."""
        _write_adapter_config(partial, self._model, self._model_path)
        self._base_sha256 = self._base_sha256 or weights_sha256(self._model_path)
        base = {"path": str(self._model_path.absolute()), "sha256": self._base_sha256}
        return {"adapter": described(adapter), "base": base}

    def _full_weights(self, partial: Path, shards: dict[str, Tensor], names: list[str]) -> dict[str, Tensor]:
        """Whole parameters in the dtype of the forward pass, from the shards of the first cell's ranks."""
        from safetensors import safe_open

        dtype, rows = self._model.dtype, self._model.rows
        if rows.ranks == 1 and self._model.cell == 0:
            return {name: shards[f"parameter/{name}"].to(dtype) for name in names}
        files = [state_file(rank, self._world_size) for rank in range(rows.ranks)]
        self._await(partial, files)
        opened: list[Any] = [safe_open(str(partial / name), framework="pt") for name in files]
        return {name: torch.cat([file.get_tensor(f"parameter/{name}") for file in opened]).to(dtype) for name in names}

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


def export_model(directory: Path, model_path: Path, model: ShardedModel, rank: int) -> None:
    """Write the whole model in Hugging Face form, from rank 0. Every rank calls it."""
    full = {}
    for name, tensor in model.whole_parameters():
        if rank == 0:
            full[name] = tensor.to("cpu", model.dtype, copy=True).contiguous()
    if rank == 0:
        directory.mkdir(parents=True, exist_ok=True)
        copy_model_files(model_path, directory, str(model.dtype).removeprefix("torch."))
        if model.config.adapter.rank:
            _write_adapter_config(directory, model, model_path)
            write_weights(directory / ADAPTER_FILE, full)
        else:
            write_weights(directory / weights_file(0, 1), full)


def _write_adapter_config(directory: Path, model: ShardedModel, base: Path) -> None:
    """Write PEFT's settings."""
    settings = adapter_config(model.config.adapter, model.shapes, str(base.absolute()))
    (directory / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def weight_owners(model: ShardedModel, world_size: int) -> dict[str, int]:
    """Which rank writes which parameter in full: the largest first, each to the rank with the least so far."""
    loads, owners = [0] * world_size, dict[str, int]()
    sizes = {name: math.prod(shape) for name, shape in model.shapes.items()}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += sizes[name]
    return owners


def write_weights(path: Path, full: dict[str, Tensor]) -> None:
    """Write full weights under Hugging Face names, and sync them."""
    from safetensors.torch import save_file

    save_file(full, str(path), metadata={"format": "pt"})
    sync(path)


def _write_index(directory: Path, model: ShardedModel, world_size: int) -> None:
    """Where Hugging Face looks for the weights of a model in several files."""
    files = {name: weights_file(owner, world_size) for name, owner in weight_owners(model, world_size).items()}
    total = sum(map(math.prod, model.shapes.values())) * model.dtype.itemsize
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
