"""TensorBoard's files of a run, if it is installed. ``metrics.jsonl`` has the same data, so a full disk does not fail here.

TensorBoard's writer has a thread and an exit handler of its own, in which an error would only be a traceback on the terminal.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, BinaryIO

_log = logging.getLogger(__name__)
_PREFIX = "tailrace"


class _Files:
    """Opens the files of paths such as ``tailrace:/runs/x/tensorboard/events``."""

    def open(self, path: str) -> _File:
        return _File(Path(path.removeprefix(f"{_PREFIX}:")))

    def directory_check(self, path: str) -> None:
        Path(path.removeprefix(f"{_PREFIX}:")).mkdir(parents=True, exist_ok=True)


class _File:
    """A file that is given up at the first error, which is logged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = path.open("wb", buffering=0)

    def write(self, data: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError as error:
                self._file.close()
                self._file = None
                _log.warning("%s is incomplete: %s; metrics.jsonl has the same data", self._path, error.strerror)

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def tensorboard_writer(directory: Path) -> Any:
    """A ``SummaryWriter`` for a directory; None if it is not installed, which an extra does."""
    try:
        from tensorboardX import SummaryWriter
        from tensorboardX.record_writer import register_writer_factory
    except ImportError:
        return None
    register_writer_factory(_PREFIX, _Files())
    return SummaryWriter(f"{_PREFIX}:{directory.absolute()}")
