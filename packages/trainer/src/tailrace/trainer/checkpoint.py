"""Writes checkpoints of the trainer's state, copied to host memory first, then written in the background.

    save ──copy──► host memory ──► a thread: state-R-of-N, a checksum of each MiB ──► rank 0 has all checksums and completes
      waits while the copy before is written          └──► whole weights, from the rows of all ranks (in the file system)

There is one copy: a save waits until the one before is written, not until it is durable. Whole weights are put together from
what the ranks wrote, so that no rank gathers them while training waits.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tailrace.trainer.adapters import ADAPTER_CONFIG, adapter_config, described
from tailrace.trainer.checkpoint_files import (
    WriteProgress,
    complete,
    copy_model_files,
    partial_directory,
    rows_file,
    state_file,
    sync,
    weights_file,
    written_file,
)
from tailrace.trainer.config import AdapterConfig
from tailrace.trainer.errors import CheckpointError, CheckpointTimeoutError
from tailrace.trainer.restore import OF_CRITIC, restore
from tailrace.trainer.sharded_model import ShardedModel, least_loaded, parameter_dtype
from tailrace.trainer.tensor_file import HostCopy, bytes_of, spec_of, write_tensors
from tailrace.trainer.weights_file import ADAPTER_FILE, FileTensor, weights_sha256

_POLL_S = 0.01
_SLACK_BYTES = 1 << 16  # of random state
_FAILED = "failed"  # a file in which a rank says why it cannot write its part
MOST_PENDING = 2
"""Checkpoints that may be under way at once, of which one is a copy in host memory; one more waits for the oldest."""


class CheckpointWriter:
    """Writes checkpoints in the order in which they were begun, on its own thread, and restores them.

    Each rank of the first cell writes its shards, and every rank the full weights of its share of the parameters. Each takes
    the checksums of what it writes, and says when it is done; rank 0 then completes the directory. Ranks meet in the file
    system, which all must share, so that no collective runs beside training.

    Args:
        model_path: directory with the model's configuration and tokenizer.
        model: what is saved.
        rank, world_size: this process among the ranks.
        timeout_s: how long a further save waits for room, and a rank for the files of the others, while no byte is written.
        critic: the critic's model, whose state is saved beside the policy's; None without one.

    Attributes:
        read_bytes: bytes that the last `load` has read.
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
        self._copy = HostCopy(pinned=model.device.type == "cuda")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._pending: deque[tuple[Path, int, Future[Path]]] = deque()
        self.read_bytes = 0

    @property
    def copy_bytes(self) -> int:
        """Host memory of the copy."""
        return self._copy.nbytes

    def save(self, directory: Path, version: int, *, full: bool = True) -> Future[Path]:
        """Begin to write this rank's part. Returns once it is copied to host memory; the future waits until it is durable.

        Args:
            directory: its final name.
            version: its version.
            full: whether the optimizer's state is saved beside the weights, or the weights alone, in the dtype of the forward
                pass.

        Raises:
            CheckpointTimeoutError: two are under way, or one of the same name, and no byte was written until the deadline.
        """
        from safetensors import SafetensorError

        directory = directory.absolute()
        self._make_room(directory)
        partial = partial_directory(directory)
        unmade = _make_anew(partial) if self._rank == 0 else None  # others wait: it is raised behind the barrier
        dist.barrier()
        self._take_copy(directory, version)
        try:
            self._copy.reserve(self._state_bytes(full=full))
            specs = self._copy.fill(self._tensors(full=full), None if full else self._model.dtype)
        except BaseException:
            self._copy.give_back()
            raise
        steps, cells = self._model.steps, self._model.cells
        manifest: dict[str, Any] = {"version": version, "steps": steps, "world_size": self._world_size, "cells": cells}
        manifest["full"] = full
        if self._critic is not None:
            manifest["critic"] = {"steps": self._critic.steps}

        def write() -> Path:
            held = ExitStack()  # the copy, which goes back once it is written
            held.callback(self._copy.give_back)
            try:
                if unmade is not None:
                    raise unmade
                self._write(directory, partial, specs, manifest, held)
            except (OSError, SafetensorError) as error:
                self._give_up(partial, error)
                raise CheckpointError(f"{directory}: the checkpoint could not be written: {error}") from error
            except BaseException as error:  # the future hands it to whoever waits
                self._give_up(partial, error)
                raise
            finally:
                held.close()
            return directory

        future = self._thread.submit(write)
        self._pending.append((directory, version, future))
        return future

    def load(self, directory: Path, weights: Mapping[str, Tensor] | None = None) -> int:
        """Restore the model from a checkpoint, with other weights if they are given. Returns its version. Collective; see
        `restore`.

        Raises:
            CheckpointTimeoutError: a checkpoint is being written, and no byte of it was until the deadline.
        """
        self._take_copy(directory.absolute(), None)
        try:
            version, self.read_bytes = restore(
                directory,
                self._model,
                self._rank,
                self._world_size,
                self._model_path,
                self._copy,
                critic=self._critic,
                weights=weights,
            )
        finally:
            self._copy.give_back()
        return version

    def close(self) -> None:
        """Wait until the checkpoints under way are written.

        Raises:
            CheckpointTimeoutError: one is not, and no byte was written until the deadline. It is left to its thread.
        """
        self._thread.shutdown(wait=False)
        self._wait_until(lambda: not self._pending)

    def _take_copy(self, directory: Path, version: int | None) -> None:
        progress = WriteProgress(directory.parent, self._timeout_s)
        if not self._copy.take(progress.passed):
            what = "a checkpoint to load" if version is None else f"checkpoint-{version} to begin"
            raise CheckpointTimeoutError(
                f"waited {self._timeout_s} s for {what}: no byte of the one before was written; is the disk full or slow?"
            )

    def _make_room(self, directory: Path) -> None:
        """Two checkpoints of one name would write the same files."""
        self._wait_until(
            lambda: len(self._pending) < MOST_PENDING and directory not in [one for one, _, _ in self._pending]
        )

    def _wait_until(self, enough: Callable[[], bool]) -> None:
        while self._pending and (self._pending[0][2].done() or not enough()):
            directory, version, future = self._pending[0]
            progress = WriteProgress(directory.parent, self._timeout_s)
            while True:
                try:
                    future.exception(_POLL_S)
                    break
                except FutureTimeoutError as error:
                    if progress.passed():
                        raise CheckpointTimeoutError(
                            f"waited {self._timeout_s} s for checkpoint-{version} to become durable, and no byte was written; "
                            "is the disk full or slow?"
                        ) from error
            self._pending.popleft()

    def _give_up(self, partial: Path, error: BaseException) -> None:
        if self._rank == 0:
            shutil.rmtree(partial, ignore_errors=True)  # free its space, since the disk may be full
            return
        with suppress(OSError):  # rank 0 has given it up, or waits until its deadline
            _write_new(partial / _FAILED, f"rank {self._rank} cannot write: {error}")

    def _state_bytes(self, *, full: bool) -> int:
        """Bytes that this rank saves once there are moments, so that the copy does not grow while it is filled."""
        if self._model.cell:
            return _SLACK_BYTES if full else 0
        models = [self._model, *([self._critic] if full and self._critic is not None else [])]
        count = 0
        for model in models:
            for shape in model.shapes.values():
                part = model.rows.of(shape[0])
                count += (part.stop - part.start) * math.prod(shape[1:])
        if not full:
            return count * int(self._model.dtype.itemsize)
        return 3 * count * int(parameter_dtype(self._model.config).itemsize) + _SLACK_BYTES

    def _tensors(self, *, full: bool) -> Iterator[tuple[str, Tensor]]:
        """The rows of parameters and moments, which the first cell's ranks write, and this rank's random state."""
        yield from self._model.state(moments=full)
        if not full:
            return
        if self._critic is not None:
            yield from ((OF_CRITIC + name, tensor) for name, tensor in self._critic.state())
        yield "random/cpu", torch.get_rng_state()
        if self._model.device.type == "cuda":
            yield "random/cuda", torch.cuda.get_rng_state(self._model.device)

    def _write(
        self,
        directory: Path,
        partial: Path,
        specs: Sequence[FileTensor],
        manifest: dict[str, Any],
        held: ExitStack,
    ) -> None:
        written: dict[str, Mapping[str, Any]] = {}
        alone = self._model.rows.ranks == 1 and self._world_size == 1
        if manifest["full"]:
            name = state_file(self._rank, self._world_size)
            written[name] = write_tensors(partial / name, specs, self._copy.blocks(specs))
        elif not alone:
            name = rows_file(self._rank, self._world_size)
            write_tensors(partial / name, specs, self._copy.blocks(specs), synced=False)
        owners = self._owners()
        owned = [name for name, owner in owners.items() if owner == self._rank]
        if alone:
            shards = self._copy.tensors(specs)
            written |= self._write_weights(partial, owned, lambda name: shards[f"parameter/{name}"])
        held.close()
        if not alone and (owned or self._rank == 0):
            written |= self._write_weights(partial, owned, self._rows_of_all(partial, full=manifest["full"]))
        if self._rank:
            self._say(partial, written)
            return
        copy_model_files(self._model_path, partial, str(self._model.dtype).removeprefix("torch."))
        if self._adapter is not None:
            manifest |= self._describe_adapter(partial, self._adapter)
        elif self._world_size > 1:
            _write_index(partial, self._model, self._world_size)
        written |= self._heard(partial)
        for rank in range(self._world_size):
            (partial / rows_file(rank, self._world_size)).unlink(missing_ok=True)
        complete(partial, directory, manifest, written)

    def _write_weights(
        self, partial: Path, names: Sequence[str], tensor: Callable[[str], Tensor]
    ) -> dict[str, dict[str, Any]]:
        """Write whole parameters in the dtype of the forward pass, one after the other."""
        dtype, shapes = self._model.dtype, self._model.shapes
        specs = [spec_of(name, shapes[name], dtype) for name in names]
        path = partial / self._weights_file(self._rank)
        return {path.name: write_tensors(path, specs, (bytes_of(tensor(name).to(dtype)) for name in names))}

    def _rows_of_all(self, partial: Path, *, full: bool) -> Callable[[str], Tensor]:
        """Whole parameters from the files of the first cell's ranks."""
        from safetensors import safe_open

        ranks = range(self._model.rows.ranks)
        files = [(state_file if full else rows_file)(rank, self._world_size) for rank in ranks]
        self._await(partial, files)
        opened: list[Any] = [safe_open(str(partial / name), framework="pt") for name in files]
        return lambda name: torch.cat([file.get_tensor(f"parameter/{name}") for file in opened])

    def _say(self, partial: Path, written: Mapping[str, Mapping[str, Any]]) -> None:
        """Tell rank 0 what this rank has written."""
        _write_new(partial / written_file(self._rank, self._world_size), json.dumps(written))

    def _heard(self, partial: Path) -> dict[str, dict[str, Any]]:
        """Wait until all other ranks are done. Returns what they have written."""
        found: dict[str, dict[str, Any]] = {}
        names = [written_file(rank, self._world_size) for rank in range(1, self._world_size)]
        self._await(partial, names)
        for name in names:
            found |= json.loads((partial / name).read_text(encoding="utf-8"))
            (partial / name).unlink()
        return found

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

    def _await(self, partial: Path, names: Iterable[str]) -> None:
        """Wait for files that other ranks write, while bytes of any are."""
        progress = WriteProgress(partial.parent, self._timeout_s)
        for name in names:
            while not (partial / name).exists():
                if not partial.exists():
                    raise CheckpointError(f"{partial}: another rank gave the checkpoint up")
                if (partial / _FAILED).exists():
                    raise CheckpointError(f"{partial}: {(partial / _FAILED).read_text(encoding='utf-8')}")
                if progress.passed():
                    raise CheckpointTimeoutError(
                        f"waited {self._timeout_s} s for {name} of another rank, and no byte was written; do all ranks share "
                        f"{partial}?"
                    )
                time.sleep(_POLL_S)


def _write_new(path: Path, text: str) -> None:
    """Write a file so that others see a whole one or none."""
    growing = path.with_name(f".{path.name}")
    growing.write_text(text, encoding="utf-8")
    growing.replace(path)


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
    """Which rank writes which parameter in full."""
    return least_loaded({name: math.prod(shape) for name, shape in model.shapes.items()}, world_size)


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
