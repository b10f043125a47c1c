"""Watches a run's controller, shows the run, and lets another controller take the place of one that died.

    controller ──► status.json, controller.log ──► shown          signals ──► passed on: in order at first, then at once
        └── dies, or is silent ──► on Ray another one attaches, at once, then after pauses; otherwise it is said how to go on

Whatever a controller ends with by itself is the exit status here.
"""

from __future__ import annotations

import fcntl
import math
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.cli.console import plain_console
from tailrace.cli.errors import FAILED, INTERRUPTED, KILLED
from tailrace.cli.runs.controller_process import ATTACH, LOG, ControllerOrder, ControllerProcess, LeftController
from tailrace.cli.runs.display import RunLines, Screen, clock, display, restarts
from tailrace.cli.runs.status import read_status
from tailrace.cli.runs.stopping import Stopping
from tailrace.contracts import shown
from tailrace.pipeline.errors import RunDirectoryError, resume_command
from tailrace.pipeline.run.directory import RunDirectory, read_json
from tailrace.pipeline.run.figures.results import MeasuredAnswers, Quantity, Results
from tailrace.pipeline.run.prompts.reading import treated_rows
from tailrace.processes.child import last_line
from tailrace.report.figures.held_out import UNKNOWN_ACCURACY, gain, reward_alone, with_error
from tailrace.report.figures.prompts import PromptFates, failures
from tailrace.report.reason_words import changes_in_words, percent
from tailrace.runtime.hosts.ray_cluster import CLAIM, RayCluster

LOOK_S = 0.1
SILENT_S = 30.0
"""A controller that has not claimed its run for so long stands still, and is killed."""
STILL_S = 120.0
"""A controller that trains writes its status twice a second. After so long without one a line says so."""
PAUSES_S = (0.0, 2.0, 8.0)
"""Pauses before the first, second and third controller in a row that takes another's place without a step between them."""
_OURS = "tailrace: "
_LITTLE = 1 << 20  # bytes: a disk with less is full


class RunWatcher:
    """A run, as its watcher sees it.

    Args:
        directory: the run.
        process: its controller.
        successor: starts a controller that attaches.
        pauses_s: see `PAUSES_S`.
        silent_s, still_s: see `SILENT_S` and `STILL_S`.
        faults: of the run, see `ControllerOrder`: a controller that attaches goes on with those that have not struck yet.
    """

    def __init__(
        self,
        directory: RunDirectory,
        process: ControllerProcess | LeftController,
        *,
        successor: Callable[[], ControllerProcess] = ControllerProcess,
        pauses_s: tuple[float, ...] = PAUSES_S,
        silent_s: float = SILENT_S,
        still_s: float = STILL_S,
        faults: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory, self.process = directory, process
        self.shown: RunLines | Screen | None = None
        self.last_words: list[str] = []
        """What the controller said last of all, for after the display."""
        self._successor, self._pauses_s, self._silent_s, self._faults = successor, pauses_s, silent_s, faults
        self._log = directory.root / LOG
        self._begins = self._read = self._log.stat().st_size if self._log.exists() else 0
        self._status_at = self._claim_at = 0
        self._still_s, self._told_s = still_s, math.inf  # when the status was told last, while it is told all the time
        self._step = self._lost_at = -1
        self._in_a_row = 0
        self._claims_of = 0
        self._heard_s = 0.0
        self._claims_by_s, self._waits_s = math.inf, 0.0
        self._why = ""

    def say(self, text: str) -> None:
        """Show a line."""
        if self.shown is not None:
            self.shown.say(text)

    def until_over(self, stopped: Callable[[], bool]) -> int:
        """Watch until no controller controls the run any more. Returns the exit status.

        Args:
            stopped: whether the run was told to stop, so that no controller is replaced.
        """
        while True:
            while (status := self.process.poll()) is None:
                self._look()
                self._kill_if_silent()
                time.sleep(LOOK_S)
            self._look()
            if status >= 0:
                if status == FAILED and not self.last_words:
                    self.last_words.append(self._without_a_word())
                return status
            if stopped():
                return INTERRUPTED
            if not self._replaced(-status, stopped):
                return INTERRUPTED if stopped() else KILLED - status

    def _without_a_word(self) -> str:
        """The last word for a controller that ended without one: its log may be on the disk that is full."""
        root = self.directory.root
        try:
            free = shutil.disk_usage(root).free
        except OSError as error:  # the directory is gone
            return f"{_OURS}the run failed and did not say why: {root}: {error.strerror}"
        if free < _LITTLE:
            why = f"found {free >> 10} KiB free for {self._log}, expected room"
        elif self._read > self._begins:  # such as a library that ends the process
            with self._log.open("rb") as log:
                why = f"the last line of {self._log} is {shown(last_line(log))!r}"
        else:
            why = f"see {self._log}"
        return f"{_OURS}the run failed and did not say why: {why}; go on with: {resume_command(root)}"

    def _replaced(self, number: int, stopped: Callable[[], bool]) -> bool:
        """Let another controller take the place of one that a signal ended, if it can."""
        name = signal.Signals(number).name
        lost = f"the controller (process {self.process.pid}) {self._why or f'was ended by {name}'}"
        go_on = f"go on with: {resume_command(self.directory.root)}"
        self._in_a_row = 1 if self._step > self._lost_at else self._in_a_row + 1
        self._lost_at, self._why = self._step, ""
        cluster = RayCluster.read(self.directory.root)
        if self.directory.summary.exists():
            found = f"the run is complete; tailrace report {shlex.quote(str(self.directory.root))} writes its report"
        elif cluster is None:
            found = f"its members ended with it; {go_on}"
        elif not self.directory.decided():
            found = f"before the run began; {go_on}"
        elif self._in_a_row > len(self._pauses_s):
            found = f"{self._in_a_row} in a row died without a step between them; {go_on}"
        else:
            self.say(f"{_OURS}{lost}; another one attaches, and nobody restarts")
            self._pause(self._pauses_s[self._in_a_row - 1], stopped)
            if not stopped():
                self._attach(cluster.unclaimed_s)
                return True
            found = go_on
        self.last_words.append(f"{_OURS}{lost}; {found}")
        if cluster is not None:
            cluster.end()
        return False

    def _attach(self, waits_s: float) -> None:
        """Start a controller that attaches. It claims the run in the seconds that members wait for one, or never."""
        self._claims_by_s, self._waits_s = time.monotonic() + waits_s, waits_s
        self.process = self._successor()
        self.process.order(ControllerOrder(ATTACH, str(self.directory.root), faults=self._faults))

    def _pause(self, seconds: float, stopped: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not stopped():
            time.sleep(LOOK_S)

    def _look(self) -> None:
        """Show what is new."""
        for line in self._lines():
            if line.startswith(_OURS):
                self.last_words.append(line)
            else:
                self.say(line)
        with suppress(OSError, RunDirectoryError):  # it is not written yet, or the directory is gone
            at = self.directory.status.stat().st_mtime_ns
            if at != self._status_at:
                status = read_status(self.directory)
                self._status_at = at
                if status.pid == self.process.pid:  # otherwise of a controller before this one
                    self._step = status.step
                    self._told_s = time.monotonic() if status.phase == "training" else math.inf
                    self._show(status)
        if time.monotonic() - self._told_s > self._still_s:
            self._told_s = math.inf
            pid, root = self.process.pid, self.directory.root
            self.say(
                f"{_OURS}the controller (process {pid}) has told nothing for {self._still_s:.0f} s, and may stand still: "
                f"kill -9 {pid} ends it; go on with: {resume_command(root)}"
            )

    def _show(self, status: object) -> None:
        if self.shown is None:
            return
        try:
            self.shown(status)  # type: ignore[arg-type]
        except OSError:  # nobody reads what is shown any more; the run goes on
            self.shown = None

    def _lines(self) -> Iterator[str]:
        """Whole lines that controllers printed since the last call."""
        with suppress(OSError), self._log.open("rb") as file:
            file.seek(self._read)
            block = file.read()
            whole = block[: block.rfind(b"\n") + 1]
            self._read += len(whole)
            yield from (shown(line, keep="\t") for line in whole.decode(errors="replace").splitlines())

    def _kill_if_silent(self) -> None:
        """Kill a controller that claims its run no more, or took another's place and never does.

        The time is this process's own, and stops with it.
        """
        try:
            at = (self.directory.root / CLAIM).stat().st_mtime_ns
        except OSError:  # it has none yet, or gave it back
            at = 0
        now = time.monotonic()
        if at != self._claim_at:
            if self._claim_at:
                self._claims_of = self.process.pid
            self._claim_at, self._heard_s = at, now
        elif at and self._claims_of == self.process.pid and now - self._heard_s > self._silent_s:
            self._why = f"was silent for {self._silent_s:.0f} s and was killed"
            self._claims_of = 0
            self.process.kill()
        elif now > self._claims_by_s and self._claims_of != self.process.pid:
            self._why = f"did not claim the run within {self._waits_s:g} s (deadlines.unclaimed_s) and was killed"
            self._claims_by_s = math.inf
            self.process.kill()

    def stop(self) -> None:
        """Let the run end in order."""
        self.process.stop()

    def end_at_once(self, status: int) -> None:
        """End this process and everything of the run on this machine."""
        self.process.kill()
        cluster = RayCluster.read(self.directory.root)
        if cluster is not None:
            cluster.end(patience_s=0.0)
        os._exit(status)


def watch(
    directory: RunDirectory, process: ControllerProcess | LeftController, order: ControllerOrder | None, *, plain: bool
) -> int:
    """Let a controller begin, show its run until it is over, and print the results. Returns the exit status.

    Args:
        directory: the run.
        process: its controller.
        order: what it is to do; None if it has begun before.
        plain: lines instead of a live display.

    Raises:
        RunDirectoryError: another process watches the run.
    """
    with _watching(directory):
        run = RunWatcher(directory, process, faults=None if order is None else order.faults)
        directory.unlock()
        if order is not None and not isinstance(process, LeftController):
            process.order(order)
        go_on = f"go on with: {resume_command(directory.root)}"
        with Stopping(run.say, go_on, stop=run.stop, end=run.end_at_once) as stopping:
            try:
                with display(plain=plain) as run.shown:
                    status = run.until_over(stopping.told.is_set)
            except OSError:  # the terminal is gone
                run.shown = None
                status = run.until_over(stopping.told.is_set)
        with suppress(OSError):
            for line in run.last_words:
                print(line, file=sys.stderr)
            if status == 0:
                show_outcome(read_json(directory.summary), directory)
    return status


def unwatched(directory: RunDirectory) -> int | None:
    """The process of a controller that lives on after its watcher died; None if there is none."""
    if not _lock(directory.root).exists() or not directory.running():
        return None
    try:
        with _watching(directory):
            pid = read_json(directory.status).get("pid")
    except RunDirectoryError:
        return None
    return pid if isinstance(pid, int) else None


@contextmanager
def _watching(directory: RunDirectory) -> Iterator[None]:
    """Keep other watchers out.

    Raises:
        RunDirectoryError: another process watches the run.
    """
    handle = os.open(_lock(directory.root), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunDirectoryError(
                f"{directory.root}: found another process that watches this run, expected none; "
                "look at it with: tailrace status --watch"
            ) from error
        yield
    finally:
        os.close(handle)


def _lock(root: Path) -> Path:
    return root / "watcher"


def show_outcome(summary: dict[str, Any], directory: RunDirectory, console: Console | None = None) -> None:
    """Print the results of a finished run."""
    console = console if console is not None else plain_console()
    found = Results.from_plain(summary["evaluation"])
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")

    def row(name: str, said: str, *, style: str = "") -> None:
        table.add_row(name, Text(said, style=style))

    best = found.best_control
    quantities = found.quantities or (Quantity.ACCURACY,)
    if Quantity.ACCURACY not in quantities:
        row("accuracy", UNKNOWN_ACCURACY)
    for quantity in quantities:
        row(f"{quantity} before", _measured(quantity, found.before))
        row(f"{quantity} after", _measured(quantity, found.after), style="bold")
    for source in found.sources:
        before, after = (None if one is None else one.sources.get(source) for one in (found.before, found.after))
        shown = [_measured(quantities[0], one) for one in (before, after)]
        row(f"of {source}", " before, ".join(shown) + " after")
    name = "best control without RL"
    row(name, f"{_measured(quantities[0], best)} ({best.name})" if best is not None else "not measured")
    row("steps", f"{summary['steps']}, {summary['trained_trajectories']:,} trajectories")
    row("trained", f"{summary['tokens_per_s']:,.0f} tokens/s")
    bound = summary["staleness_bound"]
    guaranteed = f", bound {bound}" if bound is not None else ""
    row("staleness", f"{summary['staleness_mean']:.2f} mean, {summary['staleness_max']} max{guaranteed}")
    row("prompts", str(_prompts(summary["prompts"])))
    if summary.get("rounds_short") or summary.get("rounds_long"):
        waste = percent(summary["speculation_waste"])
        queued = f"{summary['prompts']['queued']:,} prompts wait for the next long one"
        row("rounds", f"{summary['rounds_short']:,} short, {summary['rounds_long']:,} long; {queued}")
        row("", f"{waste} of the tokens were generated by what lost a race")
    if summary.get("loans"):
        lent = f"{summary['loans']:,} times, {summary['lend_s']:.2f} s to leave, {summary['return_s']:.2f} s to return"
        row("devices lent", lent)
    for line in (*treated_rows(summary), *failures(summary["prompts"]), *summary.get("warnings", ())):
        row("", line)
    if summary["partial_rollout"]:
        pulls, migrated = summary["interrupting_pulls"], summary["migrated_trajectories"]
        moved = f", {summary['repacks']} repacks" if summary["repacks"] else ""
        row("interruptions", f"{pulls:,} pulls interrupted work, {migrated:,} trajectories migrated{moved}")
        row("resumed on newer", f"{summary['resumed_on_newer']:,} times a trajectory continued under newer weights")
        row("restarts", restarts(summary["restarts"]))
    else:
        row("repacks, restarts", f"{summary['repacks']}, {restarts(summary['restarts'])}")
    row("lost trajectories", str(summary["lost_trajectories"]))
    if summary["contradictions"]:
        row("contradictions", f"{summary['contradictions']} snapshots", style="red")
    for change in summary.get("changes", ()):
        row("changed on resume", changes_in_words(change))
    struck, missed = summary.get("faults", ()), summary.get("faults_not_struck", ())
    if struck or missed:
        row("faults", f"{len(struck)} struck" + (f", {len(missed)} did not" if missed else ""))
    row("wall time", clock(summary["wall_s"]))
    row("report", str(directory.report))
    for name, place in summary.get("trackers", {}).items():
        row(name, place)
    console.print(Text(f"\n{gain(found)}\n"))
    warning = reward_alone(found)
    if warning is not None:
        console.print(Text(f"{warning}\n", style="yellow"))
    console.print(table)
    if missed:
        console.print(Text(f"\nscripted faults that did not strike: {', '.join(missed)}", style="yellow"))


def _prompts(counted: Mapping[str, Any]) -> PromptFates:
    return PromptFates(counted["admitted"], counted["trained"], counted["filtered"], counted["failed_because"])


def _measured(quantity: Quantity, measured: MeasuredAnswers | None) -> str:
    return "not measured" if measured is None else with_error(quantity, measured.estimate(quantity))
