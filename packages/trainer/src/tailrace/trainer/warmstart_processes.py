"""Starts the processes of a warm start, reads their progress and ends them with the caller."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

from tailrace.processes import Child, ChildEndedError, ChildTimeoutError, LineError
from tailrace.trainer.errors import WarmStartCancelledError, WarmStartError, WarmStartTimeoutError

_POLL_S = 0.1
_GRACE_S = 5.0
_TAIL_BYTES = 4000


def run_ranks(
    work: Path,
    job: dict[str, Any],
    processes: int,
    progress: Callable[[dict[str, Any]], None] | None,
    cancel: Callable[[], bool] | None,
    timeout_s: float,
) -> Path:
    """Run a job in `processes` ranks with `work` as their directory; see `warm_start` for the arguments and the errors.

    Returns:
        The model directory that rank 0 wrote, inside `work`.
    """
    built = work / "model"
    (work / "job.json").write_text(json.dumps(job), encoding="utf-8")
    deadline = time.monotonic() + timeout_s
    ranks: list[Child] = []
    threads = str(job["config"]["threads"])
    environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    try:
        for rank in range(processes):
            command = [sys.executable, "-m", "tailrace.trainer.warmstart_rank", str(work), str(rank), str(processes)]
            with (work / f"rank-{rank}.log").open("wb") as log:
                said = PIPE if rank == 0 else log
                ranks.append(Child(command, stdin=PIPE, stdout=said, stderr=log, environment=environment))
        while True:
            codes = [child.poll() for child in ranks]
            _report(ranks[0], progress)
            failed = [rank for rank, code in enumerate(codes) if code]
            if failed:
                raise WarmStartError(_why(work, failed[0], codes[failed[0]]))
            if all(code == 0 for code in codes):
                return built
            if cancel is not None and cancel():
                raise WarmStartCancelledError("the warm start was cancelled by its caller")
            if time.monotonic() > deadline:
                raise WarmStartTimeoutError(f"waited {timeout_s} s for {processes} warm-start processes to finish")
            time.sleep(_POLL_S)
    finally:
        for child in ranks:
            child.terminate()
        for child in ranks:
            child.end(_GRACE_S)


def _report(rank: Child, progress: Callable[[dict[str, Any]], None] | None) -> None:
    """Tell of all that the rank has said so far; libraries may print between."""
    with suppress(ChildTimeoutError, ChildEndedError):
        while True:
            try:
                said = rank.receive(0.0)
            except LineError:
                continue
            if progress is not None:
                progress(said)


def _why(work: Path, rank: int, code: int | None) -> str:
    tail = (work / f"rank-{rank}.log").read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
    return f"rank {rank} of the warm start ended with code {code}; the end of what it printed:\n{tail}"
