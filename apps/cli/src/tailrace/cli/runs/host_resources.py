"""Resources of this host for a run: free memory, shared memory, disk space, and whether that is a disk of this machine."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

from tailrace.fleetsim.footprint import Footprint, MemoryPlace
from tailrace.fleetsim.footprint.hosts import SHARED

_SHARED = Path(SHARED)
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")
_NETWORK_KINDS = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "fuse"),
    *("lustre", "gpfs", "ceph", "beegfs", "glusterfs", "orangefs", "pvfs2", "wekafs"),
}
_LOCAL_FUSE = {
    "fuse-overlayfs",
    "ntfs-3g",
    "mergerfs",
    "gocryptfs",
    "bindfs",
}  # of FUSE, what is on this machine's disks


def with_room_here(found: Footprint, root: Path | None) -> Footprint:
    """The footprint of a run on this machine alone, with what is free here: its `shortages` are what is missing.

    Args:
        found: what the run takes.
        root: the run directory that will be created; None of a run that has one, whose disk is not looked at.
    """
    return replace(found, places=tuple(_here(place, root) for place in found.places))


def _here(place: MemoryPlace, root: Path | None) -> MemoryPlace:
    if place.name == "host memory":
        return replace(place, capacity=free_memory(), advice="--ray-address to join a cluster")
    if place.name == SHARED and _SHARED.is_dir():
        return replace(place, capacity=shutil.disk_usage(_SHARED).free)
    if place.name.startswith("disk") and root is not None:
        at = _there(root)
        free = shutil.disk_usage(at).free
        return replace(place, name=f"{place.name}, {at}", capacity=free, advice="another --run-dir")
    return place


def store_note(root: Path) -> str | None:
    """A line if the trajectory store would stand on a network file system, on which SQLite is not safe; None otherwise.

    Args:
        root: the run directory, which need not be there.
    """
    found = file_system(_there(root))
    if found is None or not is_network(found[0]):
        return None
    kind, mounted = found
    return (
        f"{root}: found the network file system {kind} (mounted at {mounted}) under the trajectory store, expected a local "
        "disk of this machine: SQLite's locks and write-ahead log are not safe on it, and each flush waits for the network; "
        "choose another --run-dir"
    )


def file_system(path: Path) -> tuple[str, str] | None:
    """The kind of file system that a path is on, such as ext4 or nfs4, and where it is mounted; None if it is not known."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return None
    real, best = os.path.realpath(path), None
    for line in lines:  # ID PARENT DEVICE ROOT PLACE OPTIONS [FIELDS] - KIND SOURCE OPTIONS
        before, _, after = line.partition(" - ")
        place = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), before.split(" ")[4])
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        if inside and (best is None or len(place) >= len(best[1])):  # what was mounted last hides the others
            best = (after.split(" ")[0], place)
    if best is None:
        return None
    return ("fuse" if best[0].startswith("fuse.") and best[0][5:] not in _LOCAL_FUSE else best[0]), best[1]


def is_network(kind: str) -> bool:
    """Whether a kind of file system is one of the network."""
    return kind in _NETWORK_KINDS


def _there(root: Path) -> Path:
    """The directory, or the one above it in which it would be made."""
    return next(path for path in (root, *root.absolute().parents) if path.is_dir())


def free_memory() -> float | None:
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
