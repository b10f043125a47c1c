"""Restores a rank from a checkpoint: it reads the rows that it holds, and checks what it reads; all ranks agree.

as many ranks as saved it:  its own file ──at one go, into the host copy──► all ranks agree ──► the model
another number of ranks:    rows of several files, a tensor at a time ──► the model ──► all ranks agree
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tailrace.trainer.adapters import described
from tailrace.trainer.checkpoint_files import check_sizes, has_state, read_manifest, state_file
from tailrace.trainer.errors import CheckpointError
from tailrace.trainer.sharded_model import MOMENTS, Rows, SavedState, ShardedModel
from tailrace.trainer.tensor_file import CheckedFile, HostCopy
from tailrace.trainer.weights_file import weights_sha256

_CPU, _CUDA = "random/cpu", "random/cuda"
OF_CRITIC = "critic/"
"""What names of the critic's tensors begin with."""


def restore(
    directory: Path,
    model: ShardedModel,
    rank: int,
    world_size: int,
    base: Path,
    copy: HostCopy,
    *,
    critic: ShardedModel | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> tuple[int, int]:
    """Load a checkpoint of any backend into this rank. Collective: every rank raises what the first to find a fault found.

    Args:
        directory: the checkpoint.
        model: what gets its state.
        rank, world_size: this process among the ranks.
        base: the directory that the model was loaded from, which an adapter's checkpoint names by its digest.
        copy: memory for this rank's state, which nobody else uses meanwhile.
        critic: the critic's model, which gets its state too; None without one.
        weights: whole parameters that the model takes in place of the checkpoint's, by name; None: it takes those.

    Returns:
        Its version, and the bytes that this rank has read of it.

    Raises:
        CheckpointError: it is missing, damaged, of another model, or has weights alone; or `weights` are of another model.
            Nothing was changed, unless it is of another number of ranks and damaged: the model is then not to be used
            before another checkpoint is loaded.
    """
    dist.barrier()  # the first rank may have put it there
    parts: list[tuple[ShardedModel, SavedState]] = []
    saved: _StateFiles | None = None
    error: CheckpointError | None = None
    try:
        saved = _opened(directory, model, rank, world_size, base, copy, critic)
        policy = _Part(saved, model, saved.steps)
        parts.append((model, policy if weights is None else _NewerWeights(policy, model, weights)))
        if critic is not None:
            parts.append((critic, _Part(saved, critic, int(saved.manifest["critic"]["steps"]), OF_CRITIC)))
    except CheckpointError as found:
        error = found
    except (OSError, ValueError, LookupError, TypeError) as found:
        error = CheckpointError(f"{directory} is damaged: {found!r}; use another checkpoint")
    _agree(error)
    assert saved is not None
    for one, part in parts:
        one.restore(part)
    _agree(saved.error)
    for name, state in saved.random.items():
        if name == _CPU:
            torch.set_rng_state(state)
        elif model.device.type == "cuda":
            torch.cuda.set_rng_state(state, model.device)
    return saved.version, saved.read_bytes


def _agree(error: CheckpointError | None) -> None:
    """Raise on every rank, if one has an error: on each its own, or that of the first rank that has one."""
    if dist.get_world_size() > 1:
        found: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(found, None if error is None else str(error))
        said = next((one for one in found if one is not None), None)
        error = error or (None if said is None else CheckpointError(said))
    if error is not None:
        raise error


def _opened(
    directory: Path,
    model: ShardedModel,
    rank: int,
    world_size: int,
    base: Path,
    copy: HostCopy,
    critic: ShardedModel | None,
) -> _StateFiles:
    manifest = read_manifest(directory)
    check_sizes(directory, manifest)
    if not has_state(manifest):
        raise CheckpointError(
            f"{directory}: found weights alone, without the optimizer's state, expected a checkpoint with full state; "
            "tailrace export takes this one"
        )
    _check_adapter(manifest, directory, model, base)
    _check_critic(manifest, directory, critic)
    return _StateFiles(directory, manifest, model, rank, copy if manifest.get("world_size") == world_size else None)


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


class _StateFiles:
    """Tensors whose rows are split over files.

    Args:
        directory, manifest: the checkpoint.
        model: what is restored.
        rank: this rank.
        copy: memory into which this rank's own file is read at once; None: the checkpoint is of another number of ranks.

    Attributes:
        manifest, version, steps: of the checkpoint.
        place: whose file is looked at for what every file has: this rank's own where as many ranks saved, else the first's.
        error: what was found wrong while rows were read. Zeros stand for them, so that all ranks go on to where they agree.
        random: this rank's random state, if as many ranks saved it.
    """

    def __init__(
        self, directory: Path, manifest: Mapping[str, Any], model: ShardedModel, rank: int, copy: HostCopy | None
    ) -> None:
        world, steps = manifest.get("world_size"), manifest.get("steps")
        if not isinstance(world, int) or not isinstance(steps, int) or world < 1:
            raise CheckpointError(f"{directory}: found no trainer state, expected a checkpoint of a trainer")
        names = [state_file(each, world) for each in range(world)]
        if missing := [name for name in names if name not in manifest["files"]]:
            raise CheckpointError(f"found no {missing[0]} in {directory}; the checkpoint is damaged, use another")
        self.version, self.steps = int(manifest["version"]), steps
        self.error: CheckpointError | None = None
        self.random: dict[str, Tensor] = {}
        self.manifest, self.directory = manifest, directory
        self._paths = {each: (directory / name, manifest["files"][name]) for each, name in enumerate(names)}
        self._ranks = world // int(manifest.get("cells", 1))  # of the first cell, which has the rows
        self._files: dict[int, CheckedFile] = {}
        self._held: dict[int, dict[str, Tensor]] = {}
        mine = self.place = model.rows.place if copy is not None and self._ranks == model.rows.ranks else 0
        if copy is None:
            return
        if self._ranks == model.rows.ranks:
            self._held[mine] = self._file(mine).read_all(copy)
        own = self._held[mine] if mine == rank and mine in self._held else None
        for name in (_CPU, _CUDA):
            if name in self._file(rank).tensors:
                self.random[name] = self._file(rank).read_tensor(name) if own is None else own[name].clone()

    @property
    def read_bytes(self) -> int:
        """Bytes that were read of all files."""
        return sum(file.read_bytes for file in self._files.values())

    def rows(self, shape: tuple[int, ...], key: str, rows: slice, like: Tensor) -> Tensor:
        """Rows of a whole tensor of this shape, as `SavedState.rows` has them."""
        start, stop = rows.start or 0, min(shape[0], sys.maxsize if rows.stop is None else rows.stop)
        if (stop - start, *shape[1:]) != tuple(like.shape):
            self.error = self.error or CheckpointError(
                f"{self.directory}: found rows {start} to {stop} of {key} of shape {[stop - start, *shape[1:]]}, expected "
                f"{list(like.shape)}: another model's checkpoint"
            )
            return torch.zeros_like(like)
        found = torch.empty_like(like)
        try:
            for place in range(self._ranks):
                held = Rows(place, self._ranks).of(shape[0])
                low, high = max(start, held.start), min(stop, held.stop)
                if low < high:
                    part = self._part(place, key, slice(low - held.start, high - held.start))
                    found[low - start : high - start].copy_(part)
        except CheckpointError as error:
            self.error = self.error or error
            return torch.zeros_like(like)
        return found

    def _part(self, place: int, key: str, rows: slice) -> Tensor:
        """Rows of a tensor of one file, counted from its own first."""
        if place in self._held:
            return self._held[place][key][rows]
        file = self._file(place)
        if key not in file.tensors:
            raise CheckpointError(f"found no {key} in {file.path}; the checkpoint is damaged, use another")
        part = torch.empty((rows.stop - rows.start, *file.shape(key)[1:]), dtype=file.dtype(key))
        file.read_rows(key, rows, part)
        return part

    @property
    def held_rows(self) -> Rows:
        """The rows of each tensor that the file of rank `place` has."""
        return Rows(self.place, self._ranks)

    def _file(self, place: int) -> CheckedFile:
        if place not in self._files:
            self._files[place] = CheckedFile(*self._paths[place])
        return self._files[place]

    def file_here(self) -> CheckedFile:
        """The file of rank `place`."""
        return self._file(self.place)


class _Part:
    """What a checkpoint has of the policy or of the critic: see `SavedState`. It is checked to be of that model.

    Args:
        files: the checkpoint's files.
        model: what is restored.
        steps: its optimizer steps.
        prefix: what the names of its tensors begin with.
    """

    def __init__(self, files: _StateFiles, model: ShardedModel, steps: int, prefix: str = "") -> None:
        self._files, self._shapes, self.steps, self._prefix = files, model.shapes, steps, prefix
        file = files.file_here()
        mine = [key.removeprefix(prefix).partition("/") for key in file.tensors if key.startswith(prefix)]
        self.has_moments = any(kind == MOMENTS[0] for kind, _, _ in mine)
        odd = sorted({name for kind, _, name in mine if kind == "parameter"} ^ set(self._shapes))
        if odd:
            raise CheckpointError(f"{files.directory} is of another model: only one of the two has {odd[0]!r}")
        for name, shape in self._shapes.items():
            held = files.held_rows.of(shape[0])
            expected, found = [held.stop - held.start, *shape[1:]], file.shape(f"{prefix}parameter/{name}")
            if found != expected:
                raise CheckpointError(
                    f"{files.directory}: found {name!r} of shape {found} in {file.path.name}, expected {expected}: another "
                    "model's checkpoint"
                )

    def rows(self, kind: str, name: str, rows: slice, like: Tensor) -> Tensor:
        """See `SavedState`."""
        return self._files.rows(self._shapes[name], f"{self._prefix}{kind}/{name}", rows, like)


class _NewerWeights:
    """A checkpoint's state with other parameters in place of its own: see `SavedState`.

    Parameters that were published may have fewer bits than the checkpoint's. Where the checkpoint's number rounds to the
    published one it stays: it changed by less than those bits show, and is as near as they can tell.

    Args:
        saved: what the checkpoint has.
        model: what is restored.
        weights: whole parameters, by name.

    Raises:
        CheckpointError: they are not the model's.
    """

    def __init__(self, saved: _Part, model: ShardedModel, weights: Mapping[str, Tensor]) -> None:
        self._saved, self._weights = saved, weights
        self.steps, self.has_moments = saved.steps, saved.has_moments
        if odd := sorted(model.shapes.keys() ^ weights.keys()):
            raise CheckpointError(f"the newer weights are of another model: only one of the two has {odd[0]!r}")
        for name, shape in model.shapes.items():
            if (found := tuple(weights[name].shape)) != tuple(shape):
                raise CheckpointError(f"the newer weights are of another model: {name!r} is {found}, expected {shape}")

    def rows(self, kind: str, name: str, rows: slice, like: Tensor) -> Tensor:
        """See `SavedState`."""
        saved = self._saved.rows(kind, name, rows, like)
        if kind != "parameter":
            return saved
        newer = self._weights[name][rows].to(saved.device)
        return torch.where(saved.to(newer.dtype) == newer, saved, newer.to(saved.dtype))
