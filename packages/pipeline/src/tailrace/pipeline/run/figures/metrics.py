"""Metrics: one JSON line per step and per evaluation, and the same for TensorBoard if it is installed."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tailrace import contracts as c
from tailrace.controller.view import RunView
from tailrace.pipeline.errors import RunWriteError
from tailrace.pipeline.run.figures.figures import Batch
from tailrace.pipeline.run.figures.results import MeasuredAnswers
from tailrace.runtime.executor.executor import Executor

_log = logging.getLogger(__name__)
_PREFIX = "tailrace"


class MetricsObserver:
    """Writes metrics as they arise.

    Args:
        path: ``metrics.jsonl``, to which lines are appended.
        tensorboard: directory for TensorBoard; None for no TensorBoard.
    """

    def __init__(self, path: Path, tensorboard: Path | None) -> None:
        written = sum(row["kind"] == "evaluation" for row in read_metrics(path))  # by earlier drivers
        self._file = path.open("a", buffering=1)
        self._writer = None if tensorboard is None else tensorboard_writer(tensorboard)
        self._batches: dict[int, dict[str, Any]] = {}
        self._evaluations = written
        self.follows = True
        """Whether observed instants belong to the run; False while controls are evaluated."""

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        """Note a batch when it is taken and write it when it is trained on."""
        if not self.follows:
            return
        stepped = [event for event in events if type(event) is c.Stepped]
        for event in stepped:
            batch = self._batches.pop(event.version, {})
            row = {"step": run.step_of(event.version), "version": event.version, **batch, **event.metrics}
            self._write("step", now, row)
        for command in commands:  # a step may begin as soon as the one before it is done
            if type(command) is c.Step:
                self._batches = {command.version: _batch(command.version, run, now)}
        if len(run.evaluations) > self._evaluations:
            self._evaluated(now, run)

    def _evaluated(self, now: float, run: RunView) -> None:
        for result in run.evaluations[self._evaluations :]:
            measured = MeasuredAnswers.of(result.mode, result)
            row = {
                "step": result.step,
                "version": result.version,
                "mode": result.mode,
                "reward": measured.reward.value,
                "accuracy": None if measured.accuracy is None else measured.accuracy.value,
                "problems": measured.problems,
                "failed": result.failed,
                "length_p50": measured.length_p50,
                "length_p99": measured.length_p99,
            }
            self._write("evaluation", now, row)
        self._evaluations = len(run.evaluations)

    def tick(self, now: float, executor: Executor) -> None:
        """Does nothing."""
        del now, executor

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._writer is not None:
            self._writer.close()

    def _write(self, kind: str, now: float, row: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps({"kind": kind, "t": round(now, 3), "at": time.time(), **row}) + "\n")
        except OSError as error:
            raise RunWriteError(error.errno, error.strerror or str(error), self._file.name) from error
        if self._writer is not None:
            prefix = f"{kind}/{row['mode']}" if "mode" in row else kind
            for key, value in row.items():
                if isinstance(value, int | float) and key not in ("step", "version"):
                    self._writer.add_scalar(f"{prefix}/{key}", value, row["step"])


def _batch(version: int, run: RunView, now: float) -> dict[str, Any]:
    """Figures of a batch that the trainer does not know."""
    return {
        **Batch.of(version, run.version, run.batch(version), now).figures(),
        "buffered_groups": run.buffered,
        "pooled_trajectories": run.pooled,
        "filtered_groups": run.counts.filtered,
    }


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All lines of ``metrics.jsonl``; an incomplete last line is left out."""
    if not path.exists():
        return []
    with path.open() as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


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


def tensorboard_writer(directory: Path) -> Any:
    """A ``SummaryWriter`` for a directory; None if it is not installed, which an extra does."""
    try:
        from tensorboardX import SummaryWriter
        from tensorboardX.record_writer import register_writer_factory
    except ImportError:
        return None
    register_writer_factory(_PREFIX, _Files())
    return SummaryWriter(f"{_PREFIX}:{directory.absolute()}")
