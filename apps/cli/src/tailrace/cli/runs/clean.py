"""``tailrace clean``: lists what a crash left that nothing alive uses, asks, and removes it.

It finds shared memory, folders of Ray clusters, directories of generation services, adapters, and half-written files of runs.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from tailrace.cli.errors import FAILED
from tailrace.paramserver import LeftSegments, left_segments, remove_left
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.rollout.own_directory import ADAPTER, SERVICE, WEIGHTS, left_directories
from tailrace.runtime.hosts import ray_session
from tailrace.trainer import CheckpointError
from tailrace.trainer.checkpoint_files import read_manifest

_HALF = re.compile(r"\.(?P<name>.+)\.(?P<kind>partial|replaced)")


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something to remove.

    Args:
        what: what it is, in words, with its name.
        nbytes: its size.
        remove: removes it. Returns whether it was still there and unused.
    """

    what: str
    nbytes: int
    remove: Callable[[], bool]


def leftovers(runs: Sequence[Path] = ()) -> list[Leftover]:
    """What nothing alive uses: of this user on this machine, and in run directories.

    Args:
        runs: run directories to look into.

    Raises:
        RunDirectoryError: one is no run directory, or its run is under way.
    """
    found = [_segments(left) for left in left_segments()]
    found += [_directory("directory of a Ray cluster", folder) for folder in ray_session.left_folders()]
    found += [_directory("directory of a generation service", path) for path in left_directories(SERVICE)]
    for kind, what in ((ADAPTER, "adapter"), (WEIGHTS, "weights")):
        found += [_directory(f"{what} that a replica was loading,", path) for path in left_directories(kind)]
    for root in runs:
        directory = RunDirectory.open(root)
        if directory.running():
            raise RunDirectoryError(f"{root}: found a run under way here, expected one that has ended")
        found += _half_written(directory)
    return found


def _segments(left: LeftSegments) -> Leftover:
    whose = f" of {left.owner}" if left.owner else ""
    return Leftover(f"shared memory {left.base}-*{whose}", left.nbytes, lambda: bool(remove_left(left)))


def _half_written(directory: RunDirectory) -> Iterator[Leftover]:
    for path in sorted(directory.checkpoints.glob(".*")):
        found = _HALF.fullmatch(path.name)
        if found is None or not path.is_dir():
            continue
        if (directory.checkpoints / found["name"]).exists() or not _complete(path):
            yield _directory("half-written checkpoint" if found["kind"] == "partial" else "replaced checkpoint", path)
    for path in sorted([*directory.root.glob("*.partial"), *directory.trajectories.glob("*.unfinished")]):
        if path.is_file():
            yield Leftover(f"half-written file {path}", path.stat().st_size, partial(_unlink, path))


def _complete(path: Path) -> bool:
    """Whether a directory was complete and only lacked its name; it is then the only copy of its version."""
    try:
        read_manifest(path)
    except CheckpointError:
        return False
    return True


def _directory(what: str, path: Path) -> Leftover:
    return Leftover(f"{what} {path}", _size(path), partial(_remove, path))


def _size(path: Path) -> int:
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def _remove(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def _unlink(path: Path) -> bool:
    path.unlink(missing_ok=True)
    return True


def clean(runs: Sequence[Path], *, yes: bool = False) -> int:
    """List what nothing alive uses and remove it once the user agrees. Returns the exit status.

    Args:
        runs: run directories whose half-written files are removed too.
        yes: do not ask.

    Raises:
        RunDirectoryError: one of them is no run directory, or its run is under way.
    """
    found = leftovers(runs)
    if not found:
        typer.echo("Nothing is left: no shared memory, no Ray cluster, no service's directory, no half-written file.")
        return 0
    for each in found:
        typer.echo(f"{size(each.nbytes):>10}  {each.what}")
    total = size(sum(each.nbytes for each in found))
    if not yes:
        if not sys.stdin.isatty():
            typer.echo(f"{total} that nothing alive uses. Nothing was removed; --yes removes it.")
            return 0
        if not typer.confirm(f"Remove {total} that nothing alive uses?"):
            return 0
    stay = [each.what for each in found if not each.remove()]
    typer.echo(f"Removed {len(found) - len(stay)} of {len(found)}.")
    for what in stay:
        typer.echo(f"stays, since it is in use now or may not be removed: {what}")
    return FAILED if stay else 0


def size(nbytes: int) -> str:
    """A size in bytes as text."""
    value, units = float(nbytes), ("B", "kB", "MB", "GB")
    for unit in units:
        if value < 1000 or unit == units[-1]:
            break
        value /= 1000
    return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
