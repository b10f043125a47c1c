"""What room this machine has for a run: free memory, shared memory and disk space, beside what the run takes of each."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from tailrace.fleetsim.footprint import Footprint, MemoryPlace
from tailrace.fleetsim.footprint.hosts import SHARED

_SHARED = Path(SHARED)


def with_room_here(found: Footprint, root: Path | None) -> Footprint:
    """The footprint of a run on this machine alone, with what is free here: its `shortages` are what is missing.

    Args:
        found: what the run takes.
        root: the run directory that will be created; None of a run that has one, whose disk is not looked at.
    """
    return replace(found, places=tuple(_here(place, root) for place in found.places))


def _here(place: MemoryPlace, root: Path | None) -> MemoryPlace:
    if place.name == "host memory":
        return replace(place, capacity=_free_memory(), advice="--ray-address to join a cluster")
    if place.name == SHARED and _SHARED.is_dir():
        return replace(place, capacity=shutil.disk_usage(_SHARED).free)
    if place.name.startswith("disk") and root is not None:
        at = next(path for path in (root, *root.absolute().parents) if path.is_dir())
        free = shutil.disk_usage(at).free
        return replace(place, name=f"{place.name}, {at}", capacity=free, advice="another --run-dir")
    return place


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
