"""Tracker ``tensorboard``: TensorBoard's event files in the run directory."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from tailrace.contracts import need_extra
from tailrace.pipeline.trackers.tracker import TrackedRun

_log = logging.getLogger(__name__)
_PREFIX = "tailrace"


@dataclass(frozen=True)
class TensorBoard:
    """TensorBoard's files in ``RUN/tensorboard``. It has no options."""

    apart: ClassVar[bool] = False

    def check(self) -> None:
        """See `TrackerPlugin`."""
        need_extra("tailrace-pipeline", "tensorboard", "tensorboardX")

    def open(self, run: TrackedRun) -> _Writer:
        """See `TrackerPlugin`."""
        return _Writer(run.directory / "tensorboard")


class _Writer:
    def __init__(self, directory: Path) -> None:
        self.place = f"tensorboard --logdir {shlex.quote(str(directory))}"
        self._writer = summary_writer(directory)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self, *, finished: bool) -> None:
        del finished
        self._writer.close()


class _Files:
    """Opens TensorBoard's files, by paths such as ``tailrace:/runs/x/tensorboard/events``.

    TensorBoard's writer has a thread and an exit handler of its own, in which an error is only a traceback.
    ``metrics.jsonl`` has the same data, so a full disk fails nothing here.
    """

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


def summary_writer(directory: Path) -> Any:
    """A ``SummaryWriter`` for a directory."""
    from tensorboardX import SummaryWriter
    from tensorboardX.record_writer import register_writer_factory

    register_writer_factory(_PREFIX, _Files())
    return SummaryWriter(f"{_PREFIX}:{directory.absolute()}")
