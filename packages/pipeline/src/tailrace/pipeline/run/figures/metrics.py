"""Metrics: one JSON line per step and per evaluation, and the same for experiment trackers."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tailrace import contracts as c
from tailrace.controller.evaluations import EvaluationResult
from tailrace.controller.view import RunView
from tailrace.pipeline.errors import RunDirectoryError, RunWriteError
from tailrace.pipeline.run.eventlog import last_line_end
from tailrace.pipeline.run.figures.batches import Batch
from tailrace.pipeline.run.figures.results import MeasuredAnswers
from tailrace.pipeline.trackers import Trackers
from tailrace.runtime.executor.executor import Executor


class MetricsObserver:
    """Writes metrics as they arise.

    A driver that goes on calls `replay` for each instant of the log, and then `begin`.

    Args:
        path: ``metrics.jsonl``, to which lines are appended. A half last one, of a driver whose disk was full, is cut off.

    Raises:
        RunDirectoryError: a line of it is damaged, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        written = Counter(row["kind"] for row in read_metrics(path))  # by earlier drivers
        try:
            self._file = path.open("a+b", buffering=0)
            self._end = last_line_end(self._file.fileno(), path.stat().st_size)
            self._file.truncate(self._end)
        except OSError as error:
            raise RunWriteError(error.errno, error.strerror or str(error), str(path)) from error
        self._trackers: Trackers | None = None
        self._batches: dict[int, dict[str, Any]] = {}
        self._steps, self._evaluations = written["step"], written["evaluation"]
        self._missing: list[tuple[str, float, dict[str, Any]]] = []
        self.follows = True
        """Whether observed instants belong to the run; False while controls are evaluated."""

    def replay(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        """Take in an instant of the log, whose rows an earlier driver may not have written before it died."""
        for kind, row in self._rows(now, events, commands, run):
            if kind == "step" and self._steps:
                self._steps -= 1  # it is there
            else:
                self._missing.append((kind, now, row))

    def begin(self, trackers: Trackers) -> None:
        """Write the rows that the log has and the file lacks. The trackers get these and all that follow."""
        self._trackers = trackers
        for kind, now, row in self._missing:
            self._write(kind, now, row)
        self._missing = []

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        """Note a batch when it is taken and write it when it is trained on."""
        if self.follows:
            for kind, row in self._rows(now, events, commands, run):
                self._write(kind, now, row)

    def _rows(
        self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """What an instant brings: each row with its kind."""
        for event in events:
            if type(event) is c.Stepped:
                batch = self._batches.pop(event.version, {})
                yield "step", {"step": run.step_of(event.version), "version": event.version, **batch, **event.metrics}
        for command in commands:  # a step may begin as soon as the one before it is done
            if type(command) is c.Step:
                self._batches = {command.version: _batch(command.version, run, now)}
        if len(run.evaluations) > self._evaluations:
            yield from (("evaluation", _evaluated(result)) for result in run.evaluations[self._evaluations :])
            self._evaluations = len(run.evaluations)

    def tick(self, now: float, executor: Executor) -> None:
        """Does nothing."""
        del now, executor

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, kind: str, now: float, row: dict[str, Any]) -> None:
        line = json.dumps({"kind": kind, "t": round(now, 3), "at": time.time(), **row}).encode() + b"\n"
        left = memoryview(line)
        try:
            while left:  # a full disk may take only a part of it
                left = left[self._file.write(left) :]
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._end)
            raise RunWriteError(error.errno, error.strerror or str(error), str(self._file.name)) from error
        self._end += len(line)
        if self._trackers is not None:
            prefix = f"{kind}/{row['mode']}" if "mode" in row else kind
            told = {f"{prefix}/{key}": value for key, value in row.items() if key not in ("step", "version")}
            numbers = {name: value for name, value in told.items() if isinstance(value, int | float)}
            self._trackers.log(row["step"], numbers)


def _evaluated(result: EvaluationResult) -> dict[str, Any]:
    """The row of an evaluation. Where nothing could be scored its figures are None."""
    measured = MeasuredAnswers.of(result.mode, result) if result.rewards else None
    return {
        "step": result.step,
        "version": result.version,
        "mode": result.mode,
        "reward": None if measured is None else measured.reward.value,
        "accuracy": None if measured is None or measured.accuracy is None else measured.accuracy.value,
        "problems": len(result.rewards),
        "failed": result.failed,
        "length_p50": None if measured is None else measured.length_p50,
        "length_p99": None if measured is None else measured.length_p99,
    }


def _batch(version: int, run: RunView, now: float) -> dict[str, Any]:
    """Figures of a batch that the trainer does not know."""
    return {
        **Batch.of(version, run.version, run.batch(version), now).figures(),
        "buffered_groups": run.buffered,
        "pooled_trajectories": run.pooled,
        "filtered_groups": run.counts.filtered,
    }


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All lines of ``metrics.jsonl``; an incomplete last line is left out.

    Raises:
        RunDirectoryError: a line is damaged.
    """
    if not path.exists():
        return []
    with path.open("rb") as file:
        return [_row(path, number, line) for number, line in enumerate(file, 1) if line.endswith(b"\n")]


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row: dict[str, Any] = json.loads(line)
        return {**row, "kind": row["kind"]}
    except (ValueError, KeyError, TypeError) as error:
        raise RunDirectoryError(
            f"{path}, line {number}: found {line[:60].decode(errors='replace').rstrip()!r}, expected a line of metrics"
        ) from error
