"""One run of a chaos campaign: started, watched, resumed after its driver died, ended if it stands still.

tailrace run ──► exits 0 ──► checked                       no progress for `still_s` ──► killed: a hang
    ▲   └──────► died by SIGKILL, or failed ──┐
    └── --resume, with the faults that have not struck yet ◄┘
"""

from __future__ import annotations

import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.cli.errors import KILLED, CommandError
from tailrace.faulttol import Fault
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory, read_json
from tailrace.pipeline.run.eventlog import read_log
from tailrace.pipeline.run.figures.faults import FaultFigures, FaultFold
from tailrace.pipeline.run.figures.folding import Audience, follow
from tailrace.processes import Child

_LOOK_S = 1.0
_TELL_S = 60.0
_END_S = 30.0
_MOVED = re.compile(rb'"is":"(?:Finished|TurnEnded|Turned|Scored|Accumulated|Stepped|Published|Pulled|Durable)"')
"""Events without which nothing gets further; that members die and come back is no progress."""
_STRUCK = re.compile(rb'"is":"Struck"')
CONTROLLER_KILLED = KILLED + signal.SIGKILL
"""The exit status of ``tailrace run`` where nobody could take the place of a controller that was killed: not on Ray."""
MOST_FAILURES = 5
"""A run is given up after so many failed drivers. One that was killed failed if it got no further than those before it."""


@dataclass(slots=True)
class WatchedRun:
    """How a run went.

    Args:
        ended: "finished", "hung", "failed".
        drivers: processes that it took.
        faults: what struck.
        seconds: of real time.
        why: the last words of a run that failed.
    """

    ended: str
    drivers: int
    seconds: float
    faults: FaultFigures = field(default_factory=FaultFigures)
    why: str = ""


class RunProgress:
    """Whether a run gets further, seen from outside: by its log, and by its status before and after that.

    Args:
        directory: the run.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory, self._read, self._moved = directory, 0, 0
        self._struck, self._at = 0, "starting"

    @property
    def reached(self) -> int:
        """How much had moved or been struck at the last `mark`."""
        return self._moved + self._struck

    @property
    def words(self) -> str:
        """How far it was at the last `mark`, for a person."""
        return f"{self._at}, faults struck: {self._struck}"

    def mark(self) -> tuple[Any, ...]:
        """Equal to the last one while nothing moves."""
        with suppress(FileNotFoundError), self._directory.events.open("rb") as log:
            log.seek(self._read)
            block = log.read()
            whole = block[: block.rfind(b"\n") + 1]  # the last line may be half written
            self._read += len(whole)
            self._moved += len(_MOVED.findall(whole))
            self._struck += len(_STRUCK.findall(whole))
        with suppress(FileNotFoundError, RunDirectoryError):
            status = read_json(self._directory.status)
            self._at = f"{status['phase']}, step {status['step'] or 0} of {status['steps'] or '?'}"
            return self._moved, status["phase"], status["detail"], status["step"]
        return (self._moved,)


def supervise(
    root: Path,
    command: Sequence[str],
    faults: Sequence[Fault],
    *,
    still_s: float,
    tell: Callable[[str], None],
) -> WatchedRun:
    """Run to the end, or go on with a run that was cut.

    Args:
        root: the run's directory; drivers write what they print beside it.
        command: the words behind ``tailrace run`` of a new run.
        faults: of this run, in the order of their times.
        still_s: seconds without progress after which the run counts as hung.
        tell: takes lines for a person.

    Raises:
        CommandError: the run cannot begin, or is under way.
    """
    directory, began, drivers, failures, reached = RunDirectory(root), time.monotonic(), 0, 0, 0
    if directory.running():
        raise CommandError(
            f"{root}: found this run under way, as a campaign that was killed leaves it, expected it to have ended; "
            f"`tailrace status {shlex.quote(str(root))}` shows it, and the same command goes on after its end"
        )
    while True:
        figures = struck(directory, faults)
        if directory.summary.exists():
            return WatchedRun("finished", drivers, time.monotonic() - began, figures)
        left = [fault for fault in faults if str(fault) in figures.not_struck]
        words = ["--resume", str(root)] if directory.config.exists() else [*command, "--run-dir", str(root)]
        drivers += 1
        status = _drive([*words, "--plain", *options(left)], directory, still_s, tell)
        if status == 0:
            continue
        if status is None:
            tell(f"{root.name} stood still for {still_s:.0f} s and was ended")
            return WatchedRun("hung", drivers, time.monotonic() - began, struck(directory, faults))
        last, progress = _last_line(root), RunProgress(directory)
        progress.mark()
        if not directory.events.exists():
            raise CommandError(last.removeprefix("tailrace: ") or f"{root}: the run ended with status {status}")
        if status == CONTROLLER_KILLED and progress.reached > reached:
            reached = progress.reached
            tell(f"{root.name}: its driver was killed; it is resumed")
            continue
        failures += 1
        tell(f"{root.name}: {last}")
        if failures >= MOST_FAILURES:
            return WatchedRun("failed", drivers, time.monotonic() - began, struck(directory, faults), last)


def options(faults: Sequence[Fault]) -> list[str]:
    """Faults as the words of a command line."""
    return [word for fault in faults for word in (f"--{fault.kind}", str(fault).removeprefix(f"{fault.kind}:"))]


def struck(directory: RunDirectory, faults: Sequence[Fault]) -> FaultFigures:
    """What struck so far, and what did not."""
    fold = FaultFold()
    if directory.events.exists():
        follow(read_log(directory.events), Audience(fold))
    return fold.figures(faults)


def _drive(words: Sequence[str], directory: RunDirectory, still_s: float, tell: Callable[[str], None]) -> int | None:
    """Run one driver to its end, and tell how far it is. Returns its status; None if it stood still and was ended."""
    output = directory.root.with_suffix(".txt")
    with output.open("ab") as printed:
        driver = Child(
            [sys.executable, "-m", "tailrace.cli.main", "run", *words], stdout=printed, stderr=printed, group=True
        )
    status = None
    try:
        progress, mark, moved_s = RunProgress(directory), None, time.monotonic()
        told_s = moved_s
        while (status := driver.wait(_LOOK_S)) is None:
            now, now_s = progress.mark(), time.monotonic()
            if now_s - told_s >= _TELL_S:
                told_s = now_s
                tell(f"{directory.root.name}: {progress.words}")
            if now != mark:
                mark, moved_s = now, now_s
            elif now_s - moved_s > still_s:
                return None
        return status
    finally:
        if status is None:
            # Asked to stop, the run ends its members; asked again, it ends at once. At last its watcher is killed.
            driver.end(_END_S, _END_S)


def _last_line(root: Path) -> str:
    with suppress(OSError):
        lines = root.with_suffix(".txt").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""
