"""The directory of a run's checkpoints: one directory for each version, of one history.

Where the trainer goes on from a version, what was saved after it belongs to a history that is over: a version of the same
number will have other weights. It is put aside under a hidden name, and removed once that version is durable anew.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path

_VERSION = re.compile(r"\d+")
_ASIDE = re.compile(r"\.(\d+)\.lost")


def put_aside_after(root: Path, version: int) -> None:
    """The trainer goes on from this version."""
    for path in _directories(root):
        if _VERSION.fullmatch(path.name) and int(path.name) > version:
            aside = root / f".{path.name}.lost"
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)


def remove_others(root: Path, version: int, keep: Collection[int]) -> None:
    """A version is durable: older ones go, but for those to keep, and what of a lost history was put aside up to it."""
    for path in _directories(root):
        aside = _ASIDE.fullmatch(path.name)
        older = _VERSION.fullmatch(path.name) and int(path.name) < version and int(path.name) not in keep
        if older or (aside and int(aside[1]) <= version):
            shutil.rmtree(path, ignore_errors=True)


def _directories(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
