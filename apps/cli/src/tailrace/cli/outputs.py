"""Where a command writes: looked at before work that may take hours, and named if the disk fails."""

from __future__ import annotations

import os
from pathlib import Path

from tailrace.cli.errors import CommandError
from tailrace.pipeline.errors import RunWriteError


def check_file(option: str, path: Path | None) -> None:
    """Check that a file can be written, over one that is there too.

    Args:
        option: the option that names it.
        path: the file; None: none is written.

    Raises:
        CommandError: its folder is not there or may not be written to, or it is itself a folder.
    """
    if path is None:
        return
    if path.is_dir():
        raise CommandError(f"{option} {path}: found a folder, expected a file")
    if not path.parent.is_dir():
        raise CommandError(f"{option} {path}: found no folder {path.parent}, expected one that is there")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise CommandError(f"{option} {path}: found what may not be written to, expected another place")


def check_folder(what: str, path: Path) -> None:
    """Check that a folder is new or empty, where one that is there would be replaced.

    Args:
        what: the option or argument that names it.
        path: the folder.

    Raises:
        CommandError: there is something in it, or it is a file.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise CommandError(f"{what} {path}: found {'files' if path.is_dir() else 'a file'}, expected a new folder")


def write_file(path: Path, text: str) -> None:
    """Write a text.

    Raises:
        RunWriteError: the disk is full or broken. The message has the file, which an error of writing by itself has not.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunWriteError(error.errno, error.strerror, str(path)) from error
