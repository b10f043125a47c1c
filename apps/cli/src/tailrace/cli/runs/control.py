"""A run's controller as a process, ``python -m tailrace.cli.runs.control``: `tailrace run` starts it and shows the run.

    watcher ──► one line: the order ──► control ──► exit status, last words in controller.log

It is started early, imports what it needs, and ends without a word if no order comes. The pipe that brings the order stays open
as long as the watcher lives. A watcher that is killed takes a run with it whose members are threads of this process; on Ray the
run goes on.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType

from tailrace.cli.errors import DEBUG, FAILED, INTERRUPTED, complain, lines_of, one_line, show_source
from tailrace.cli.runs.controller_process import LAUNCH, LOG, RESUME, ControllerOrder
from tailrace.contracts import TailraceError
from tailrace.controller.errors import ControllerError
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import RunWriteError, resume_command
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.launching import launch as runs
from tailrace.processes import at_end_of
from tailrace.report import write_report
from tailrace.runtime.errors import DeadlineError, RoleError, RunFailedError, SupersededError

END_S = 20.0
"""Seconds that threads have to end once a run is over: fewer than after which a watcher takes the process for stuck."""


def control(order: ControllerOrder) -> int:
    """Control a run to its end. What went wrong is one line on stderr. Returns the exit status."""
    go_on = f"go on with: {resume_command(order.root)}"
    directory = None
    try:
        directory = RunDirectory.open(Path(order.root))
        _work(order, directory)
    except SupersededError as error:
        return complain(f"another controller has taken this one's place: {error}", status=FAILED)
    except KeyboardInterrupt:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        return complain(f"interrupted; {go_on}", status=INTERRUPTED)
    except (RunFailedError, RoleError, DeadlineError, ControllerError, RunWriteError) as error:
        return _failed(directory, error)
    except TailraceError as error:
        show_source()
        return max(complain(line) for line in lines_of(error))
    except Exception as error:
        return _failed(directory, error)
    finally:
        if directory is not None:
            directory.unlock()
    return 0


def _work(order: ControllerOrder, directory: RunDirectory) -> None:
    faults = {key: tuple(one) if isinstance(one, list) else one for key, one in (order.faults or {}).items()}
    if order.work == LAUNCH:
        directory.lock()
        runs.launch(directory.configuration(), directory, report=write_report)
    elif order.work == RESUME:
        config = None if order.config is None else validate([(order.root, order.config)])
        runs.resume(directory, report=write_report, config=config, changed=order.changed, faults=faults)
    else:
        runs.attach(directory, report=write_report, faults=faults)


def _failed(directory: RunDirectory | None, error: Exception) -> int:
    assert directory is not None, error
    log = directory.root / "error.log"
    see = f"see {log}"
    try:
        with log.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{''.join(traceback.format_exception(error))}\n")
    except OSError as unwritten:  # the disk may be what failed
        see = f"{log} could not be written: {unwritten.strerror}"
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    what = one_line(error) if isinstance(error, TailraceError) else f"{type(error).__name__}: {one_line(error)}"
    changed = str(directory.config)  # which a finished run with more steps has, before its summary goes
    if directory.summary.exists() and getattr(error, "filename", None) != changed:
        again = f"tailrace report {shlex.quote(str(directory.root))} writes it"
        return complain(f"the run is complete, its report is not: {what.rstrip('.')}; {see}; {again}", status=FAILED)
    go_on = "" if "--resume" in what else f"; go on with: {resume_command(directory.root)}"
    return complain(f"the run failed: {what.rstrip('.')}; {see}{go_on}", status=FAILED)


def _stop_once(number: int, frame: FrameType | None) -> None:
    """The first signal ends the run in order; a watcher that is told twice kills this process."""
    del number, frame
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _print_into(path: Path) -> None:
    """Let this process and those that it starts print into a file: they may outlive the watcher and its terminal."""
    with path.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _go_on_unwatched(order: ControllerOrder) -> None:
    """Go on without a watcher on Ray; elsewhere the run ends with it."""
    try:
        on_ray = RunDirectory(Path(order.root)).configuration().executor.name == "ray"
    except (TailraceError, OSError):  # the directory is gone, so the run ends
        on_ray = False
    if on_ray:
        print(f"nobody watches any more; the run goes on: {resume_command(order.root)} watches it", flush=True)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def _end_soon(status: int) -> None:
    """End this process although a thread hangs, as one does in which the local host builds a role: Python would wait for it."""
    ending = threading.Timer(END_S, os._exit, [status])
    ending.daemon = True
    ending.start()


def main() -> int:
    """Wait for the order, and carry it out. Returns the exit status."""
    line = sys.stdin.readline()
    if not line:
        return 0
    order = ControllerOrder(**json.loads(line))
    pipe = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    _print_into(Path(order.root) / LOG)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop_once)
    at_end_of(pipe, lambda: _go_on_unwatched(order))
    status = control(order)
    _end_soon(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
