"""How rows get to trackers: each has a queue, a thread and a deadline, so that none of them can hold up a run."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from queue import Empty, Full, Queue
from typing import Any, cast

from tailrace.contracts import plugins
from tailrace.pipeline.config.options import read_options
from tailrace.pipeline.trackers.tracker import GROUP, TrackedRun, Tracker, TrackerPlugin
from tailrace.processes import Child, ChildError

_log = logging.getLogger(__name__)
BEGIN_S = 120.0
"""Seconds that a tracker's process has to begin: some libraries take ten to be imported, and longer on a busy machine."""
_LINE = 300  # characters of what a tracker complains of
MOST_WAITING = 1_000
"""Rows that wait for a slow tracker; what comes beyond them is left out."""


def tracker_plugin(name: str, options: Mapping[str, Any]) -> TrackerPlugin:
    """A tracker's plugin with its options.

    Raises:
        ConfigError: an option is wrong.
        PluginError: no such plugin is registered, or it does not load.
    """
    kind = plugins.load(GROUP, name)
    return cast(TrackerPlugin, read_options(kind, options, f"key 'tracking.options.{name}'"))


class Trackers:
    """The trackers of a run.

    Args:
        chosen: plugins by name.
        run: what they are told.
        patience_s: seconds that a tracker has for a row, and for what is left when the run ends.
    """

    def __init__(self, chosen: Mapping[str, TrackerPlugin], run: TrackedRun, patience_s: float) -> None:
        self._lanes = [_Lane(name, plugin, run, patience_s) for name, plugin in chosen.items()]
        self._patience_s = patience_s

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Hand figures to every tracker. Returns at once. Numbers that are not finite are left out."""
        finite = {name: float(value) for name, value in figures.items() if math.isfinite(value)}
        for lane in self._lanes:
            lane.put(step, finite)

    @property
    def places(self) -> dict[str, str]:
        """Where a person looks, by tracker; those that have begun."""
        return {lane.name: lane.place for lane in self._lanes if lane.place}

    def close(self, patience_s: float | None = None, *, finished: bool) -> Sequence[str]:
        """End them once they have taken what is left. Returns a line for each that failed.

        Args:
            patience_s: seconds that all of them have together; None: those that each had for a row.
            finished: see `Tracker.close`. Only the first call counts, and a second one waits for none.
        """
        until = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        for lane in self._lanes:
            lane.end(finished=finished)
        for lane in self._lanes:
            lane.join(until)
        return [line for lane in self._lanes if (line := lane.failure)]

    def leave(self) -> None:
        """Let go of them as they are: another controller goes on with the same run."""
        for lane in self._lanes:
            lane.leave()


class _Lane:
    """The way to one tracker."""

    def __init__(self, name: str, plugin: TrackerPlugin, run: TrackedRun, patience_s: float) -> None:
        self.name, self._plugin, self._run, self._patience_s = name, plugin, run, patience_s
        self._rows: Queue[tuple[int, Mapping[str, float]]] = Queue(MOST_WAITING)
        self._ending, self._finished = threading.Event(), False
        self._left_out, self._joined, self._left = 0, False, False
        self._tracker: Tracker | None = None
        self._told = threading.Lock()
        self.place = ""
        self.failure = ""
        """What is wrong with it, in one line; empty: nothing."""
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, step: int, figures: Mapping[str, float]) -> None:
        if self.failure and not self._left_out:
            return  # it has ended
        try:
            self._rows.put_nowait((step, figures))
        except Full:
            self._left_out += 1
            self._tell(f"is slower than the run: rows are left out of it from step {step} on")

    def end(self, *, finished: bool) -> None:
        if not self._ending.is_set():
            self._finished = finished
            self._ending.set()

    def join(self, until: float) -> None:
        if self._joined:
            return
        self._joined = True
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._tell("did not take its last rows in time")

    def leave(self) -> None:
        self._joined = self._left = True
        if isinstance(self._tracker, _Apart):
            self._tracker.kill()

    def _work(self) -> None:
        try:
            tracker = self._tracker = self._open()
            while (row := self._next()) is not None:
                tracker.log(*row)
            tracker.close(finished=self._finished)
        except BaseException as error:  # whatever a tracker's library raises, SystemExit too: the run goes on
            if self._left:
                return
            said = textwrap.shorten(str(error), _LINE, placeholder=" …")
            self._tell(f"has ended: {said or type(error).__name__}")

    def _open(self) -> Tracker:
        if self._plugin.apart:
            tracker: Tracker = _Apart(self.name, self._plugin, self._run, self._patience_s)
        else:
            tracker = self._plugin.open(self._run)
        self.place = tracker.place
        return tracker

    def _next(self) -> tuple[int, Mapping[str, float]] | None:
        """The next row; None once all are taken and no other will come."""
        while True:
            try:
                return self._rows.get(timeout=0.2)
            except Empty:
                if self._ending.is_set() and self._rows.empty():
                    return None

    def _tell(self, what: str) -> None:
        with self._told:
            if self.failure:
                return
            self.failure = f"tracker {self.name} {what}; metrics.jsonl has the same data"
        _log.warning("%s", self.failure)


class _Apart:
    """A tracker in a process of its own, which cannot outlive this one."""

    def __init__(self, name: str, plugin: TrackerPlugin, run: TrackedRun, patience_s: float) -> None:
        self._patience_s = patience_s
        self._child = Child(
            [sys.executable, "-m", "tailrace.pipeline.trackers.apart"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            group=True,
        )
        options = asdict(cast(Any, plugin))
        about = {"name": name, "options": options, "directory": str(run.directory), "config": dict(run.config)}
        self.place = str(self._ask({"open": about}, BEGIN_S)["place"])

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._ask({"log": [step, dict(figures)]}, self._patience_s)

    def close(self, *, finished: bool) -> None:
        self._ask({"close": finished}, self._patience_s)
        self._child.end(1.0)

    def kill(self) -> None:
        """End its process as it is."""
        self._child.kill()

    def _ask(self, message: Mapping[str, Any], patience_s: float) -> Mapping[str, Any]:
        try:
            self._child.send(message, patience_s)
            answer = self._child.receive(patience_s)
        except ChildError:
            self._child.kill()
            raise
        if "error" in answer:
            self._child.kill()
            raise RuntimeError(str(answer["error"]))
        return answer
