"""Starts the processes of a warm start, reads their progress and ends them with the caller."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    lines: queue.Queue[bytes] = queue.Queue()
    ranks: list[subprocess.Popen[bytes]] = []
    threads = str(job["config"]["threads"])
    environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    try:
        for rank in range(processes):
            with (work / f"rank-{rank}.log").open("wb") as log:
                ranks.append(
                    subprocess.Popen(  # noqa: S603 - our own module
                        [sys.executable, "-m", "tailrace.trainer.warmstart_rank", str(work), str(rank), str(processes)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE if rank == 0 else log,
                        stderr=log,
                        env=environment,
                    )
                )
        reader = threading.Thread(target=_read, args=(ranks[0], lines), daemon=True)
        reader.start()
        while True:
            _report(lines, progress)
            codes = [process.poll() for process in ranks]
            failed = [rank for rank, code in enumerate(codes) if code]
            if failed:
                raise WarmStartError(_why(work, failed[0], codes[failed[0]]))
            if all(code == 0 for code in codes):
                reader.join(_GRACE_S)
                _report(lines, progress)
                return built
            if cancel is not None and cancel():
                raise WarmStartCancelledError("the warm start was cancelled by its caller")
            if time.monotonic() > deadline:
                raise WarmStartTimeoutError(f"waited {timeout_s} s for {processes} warm-start processes to finish")
            time.sleep(_POLL_S)
    finally:
        _end(ranks)


def _read(process: subprocess.Popen[bytes], lines: queue.Queue[bytes]) -> None:
    if process.stdout is not None:
        for line in process.stdout:
            lines.put(line)


def _report(lines: queue.Queue[bytes], progress: Callable[[dict[str, Any]], None] | None) -> None:
    while not lines.empty():
        line = lines.get()
        if progress is not None and line.startswith(b"{"):
            progress(json.loads(line))


def _why(work: Path, rank: int, code: int | None) -> str:
    tail = (work / f"rank-{rank}.log").read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
    return f"rank {rank} of the warm start ended with code {code}; the end of what it printed:\n{tail}"


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    for process in ranks:
        if process.poll() is None:
            process.terminate()
    for process in ranks:
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
