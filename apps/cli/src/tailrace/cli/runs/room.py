"""Checks that a run has room on this machine: memory for its members, shared for its relays, disk space for its checkpoints.

What is needed is estimated from below, so that no run is refused that fits.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

from tailrace.cli.errors import NotHereError
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.pools import relay_count, relay_slots

KEY = "key 'model.path'"
_LENGTH_BYTES = 8
_PROCESS_BYTES = 100e6  # of a member's own process, before it loads anything
_TRAINER_BYTES = 16  # for each parameter: weight, gradient and two moments in 32 bits
_SERVED_BYTES = 2  # for each parameter of a replica's or relay's copy, in 16 bits
_SAVED_BYTES = 12  # for each parameter of a checkpoint: weight and two moments in 32 bits
_BEING_WRITTEN = 2  # checkpoints at once, before an older one is removed
_FEWEST_MEMBERS = 3  # data, scorer and the driver itself
_GPU = Path("/dev/nvidiactl")
_SHARED = Path("/dev/shm")  # noqa: S108 - where Linux has it


def check_memory(config: RunConfig) -> None:
    """Check that the members of a run on this machine alone find memory here.

    Raises:
        NotHereError: they take more than is free.
    """
    free = _free_memory()
    need = _needed_memory(config)
    if free is not None and need > free:
        raise NotHereError(
            f"keys 'rollout.replicas' = {config.rollout.replicas:,}, 'trainer.processes' = {config.trainer.processes:,}, "
            f"'relay.count' = {config.relay.count:,}: found members that take at least {_gigabytes(need)} of memory, expected "
            f"at most {_gigabytes(free)}, which are free here; --ray-address joins a cluster"
        )


def check_shared_memory(config: RunConfig) -> None:
    """Check that the weights of relays here find room in shared memory, of which a container has 64 MB by default.

    Raises:
        NotHereError: they take more than is free.
    """
    if not _SHARED.is_dir():
        return
    relays, versions = relay_count(config), min(relay_slots(config), config.pipeline.steps)
    need = relays * versions * _SERVED_BYTES * _trained(config)
    free = shutil.disk_usage(_SHARED).free
    if need > free:
        raise NotHereError(
            f"key 'relay.count' = {relays:,}: found relays that hold at least {_gigabytes(need)} of weights in {_SHARED}, "
            f"expected at most {_gigabytes(free)}, which are free there; enlarge it (docker: --shm-size)"
        )


def check_disk(config: RunConfig, root: Path) -> None:
    """Check that the checkpoints find room where the run directory will be.

    Raises:
        NotHereError: they take more than is free.
    """
    each = _SAVED_BYTES * _trained(config)
    need = (min(config.checkpoint.keep, config.pipeline.steps) + _BEING_WRITTEN) * each
    place = next(path for path in (root, *root.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    if need > free:
        raise NotHereError(
            f"key 'checkpoint.keep' = {config.checkpoint.keep}: found checkpoints that take at least {_gigabytes(need)}, "
            f"{_gigabytes(each)} each, expected at most {_gigabytes(free)}, which are free at {place}; choose another --run-dir"
        )


def _needed_memory(config: RunConfig) -> float:
    replicas, relays = config.rollout.replicas, relay_count(config)
    processes = _FEWEST_MEMBERS + replicas + relays + config.trainer.processes
    need = _PROCESS_BYTES * (processes if config.executor.name == "ray" else 1)
    need += relays * _SERVED_BYTES * _trained(config)
    if _GPU.exists():  # the model may be in the memory of devices
        return need
    copies = replicas + (1 if config.trainer.adapter.rank else 0)  # a trainer's base, at least in 16 bits
    return need + _TRAINER_BYTES * _trained(config) + copies * _SERVED_BYTES * _parameters(config)


def _trained(config: RunConfig) -> int:
    """Parameters that are trained, saved and published; 0 of an adapter, which is thousands of times smaller than the model."""
    return 0 if config.trainer.adapter.rank else _parameters(config)


def _parameters(config: RunConfig) -> int:
    """Parameters of the model; 0 for the small one that a run builds itself, and for a damaged one."""
    if config.model.path is None:
        return 0
    try:
        return count_parameters(config.model.path)
    except ConfigError:  # the check of the model's files reports it
        return 0


def _free_memory() -> float | None:
    """Bytes that are free here, or that this group of processes may still take; None if the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    free = next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        limited = limit - int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no group, or one without a limit
        return free
    return limited if free is None else min(free, limited)


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB"


# Checks that the files of a model directory are complete, so that a broken download is found before any role starts.


def check_model(directory: Path) -> None:
    """Check the configuration, the tokenizer and the size of every weights file.

    Raises:
        ConfigError: a file is missing, cut short or damaged.
    """
    for name in ("config.json", "tokenizer.json"):
        _json(directory / name)
    for path in _weights(directory):
        _tensors(path)


def count_parameters(directory: Path) -> int:
    """The number of parameters in a model's files. A tied one counts once.

    Raises:
        ConfigError: a file is missing, cut short or damaged.
    """
    return sum(math.prod(tensor["shape"]) for path in _weights(directory) for tensor in _tensors(path))


def _weights(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        weight_map = _json(index).get("weight_map")
        files = sorted({str(name) for name in weight_map.values()}) if isinstance(weight_map, dict) else []
    else:
        files = sorted(path.name for path in directory.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{KEY}: found no weights in {str(directory)!r}, expected *.safetensors")
    return [directory / name for name in files]


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{KEY}: found no readable {str(path)!r}, expected a Hugging Face model directory") from error
    except ValueError as error:
        raise ConfigError(f"{KEY}: {str(path)!r} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{KEY}: {str(path)!r} holds a {type(content).__name__}, expected an object")
    return content


def _tensors(path: Path) -> list[dict[str, Any]]:
    """A file's tensors: the header's length in 8 bytes, a JSON header, and as many bytes of tensors as the header says."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            size = path.stat().st_size
            header = file.read(length) if length <= size - _LENGTH_BYTES else None
    except FileNotFoundError as error:
        raise ConfigError(f"{KEY}: {str(path)!r} is missing, and the index names it") from error
    if header is None:
        raise ConfigError(f"{KEY}: {str(path)!r} is cut short or no safetensors file ({size} bytes)")
    try:
        tensors = [tensor for name, tensor in json.loads(header).items() if name != "__metadata__"]
        ends = [tensor["data_offsets"][1] for tensor in tensors]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{KEY}: {str(path)!r} is damaged: its header is no list of tensors") from error
    expected = _LENGTH_BYTES + length + max(ends, default=0)
    if size != expected:
        raise ConfigError(f"{KEY}: {str(path)!r} is damaged: found {size} bytes, expected {expected}")
    return tensors
