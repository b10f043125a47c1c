"""A watcher's handles of the controller's process: one that it started, or one that lives on after its watcher died."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from subprocess import PIPE
from typing import Any

from tailrace.cli.errors import FAILED, INTERRUPTED
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory, read_json
from tailrace.processes import Child, ChildEndedError, ProcessId

LOG = "controller.log"
"""What a run's controllers print, in its directory."""
_ORDER_S = 300.0  # it takes its order once it has imported what it needs
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


class ControllerProcess:
    """A controller that this process starts. It is started at once, so that it imports meanwhile what it needs."""

    def __init__(self) -> None:
        # In a group of its own: Ctrl-C at a terminal is the watcher's, which passes it on.
        self._child = Child([sys.executable, "-m", "tailrace.cli.runs.control"], stdin=PIPE, group=True)
        self.pid = self._child.pid

    def order(self, order: ControllerOrder) -> None:
        """Let it begin. The pipe stays open: its end tells the controller that nobody watches any more."""
        with suppress(ChildEndedError):  # which `poll` says
            self._child.send(asdict(order), _ORDER_S)

    def poll(self) -> int | None:
        """Its exit status, less than 0 if a signal ended it; None while it lives."""
        return self._child.poll()

    def stop(self) -> None:
        """Let it end the run in order."""
        self._child.terminate()

    def kill(self) -> None:
        """End it at once, with the processes that it started in its session."""
        self._child.kill()


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
