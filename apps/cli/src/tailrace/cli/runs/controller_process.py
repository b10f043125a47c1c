"""A watcher's handles of the controller's process: one that it started, or one that lives on after its watcher died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from tailrace.cli.exit_status import FAILED, INTERRUPTED
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory, read_json
from tailrace.processes import ProcessId

LOG = "controller.log"
"""What a run's controllers print, in its directory."""
LAUNCH, RESUME, ATTACH = "launch", "resume", "attach"


@dataclass(frozen=True, slots=True)
class ControllerOrder:
    """What a controller is to do.

    Args:
        work: "launch" a run whose directory was made, "resume" one, or "attach" to the members that another controller left.
        root: the run directory.
        config: the configuration from now on, of a run that resumes with changes.
        changed: value before and after by key, with `config`.
        faults: those of this driver by their keys of a configuration, to resume or to attach with.
    """

    work: str
    root: str
    config: Mapping[str, Any] | None = None
    changed: Mapping[str, Sequence[Any]] | None = None
    faults: Mapping[str, Any] | None = None

    def line(self) -> str:
        """The order as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"


class ControllerProcess:
    """A controller that this process starts. It is started at once, so that it imports meanwhile what it needs."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.cli.runs.control"],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C at a terminal is the watcher's, which passes it on
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def order(self, order: ControllerOrder) -> None:
        """Let it begin. The pipe stays open: its end tells the controller that nobody watches any more."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended, which `poll` says
            self._process.stdin.write(order.line().encode())
            self._process.stdin.flush()

    def poll(self) -> int | None:
        """Its exit status, less than 0 if a signal ended it; None while it lives."""
        return self._process.poll()

    def stop(self) -> None:
        """Let it end the run in order."""
        self._process.terminate()

    def kill(self) -> None:
        """End it at once, with the processes that it started in its session."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()


class LeftController:
    """A controller that lives on after its watcher died.

    Args:
        directory: the run.
        pid: its process.
    """

    def __init__(self, directory: RunDirectory, pid: int) -> None:
        self.pid, self._directory, self._process = pid, directory, ProcessId.of(pid)

    def poll(self) -> int | None:
        """The controller's exit status, from what it left: only its parent is told how a process ended. None while it lives."""
        if self._process.alive():
            return None
        if self._directory.summary.exists():
            return 0
        with suppress(RunDirectoryError):
            phase = read_json(self._directory.status).get("phase")
            return {"failed": FAILED, "interrupted": INTERRUPTED}.get(str(phase), -signal.SIGKILL)
        return -signal.SIGKILL

    def stop(self) -> None:
        """Let it end the run in order."""
        if self._process.alive():
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
