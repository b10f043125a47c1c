"""Checks that a run has room on this machine: memory for its members, shared for its relays, disk space for its checkpoints.

What is needed is estimated from below, so that no run is refused that fits.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tailrace.cli.errors import NotHereError
from tailrace.cli.model_files import count_parameters
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.pools import relay_count, relay_slots

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
    need = relays * versions * _SERVED_BYTES * _parameters(config)
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
    each = _SAVED_BYTES * _parameters(config)
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
    if _GPU.exists():  # the model may be in the memory of devices
        return need + relays * _SERVED_BYTES * _parameters(config)
    return need + (_TRAINER_BYTES + (replicas + relays) * _SERVED_BYTES) * _parameters(config)


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
