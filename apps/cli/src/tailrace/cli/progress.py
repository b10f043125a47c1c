"""Shows how far a simulation is: a bar on a terminal, lines elsewhere. On stderr, so that stdout holds what was found."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from tailrace.cli.panel import clock
from tailrace.fleetsim.picture.watcher import Progress

LINE_EVERY_S = 5.0


@contextmanager
def shown(name: str) -> Iterator[Callable[[Progress], None]]:
    """Yields what wants to hear of progress.

    Args:
        name: of what is simulated.
    """
    if not sys.stderr.isatty():
        yield Lines(name, lambda text: print(text, file=sys.stderr, flush=True))
        return
    columns = (TextColumn("simulating [bold]{task.description}"), BarColumn(30), TextColumn("{task.fields[words]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name.replace("[", "\\["), total=None, words="")

        def listen(progress: Progress) -> None:
            bar.update(task, total=progress.steps, completed=progress.step, words=words(progress))

        yield listen


def words(progress: Progress) -> str:
    """How far it is, in one line."""
    speed = f", {progress.trajectories_per_s:,.0f} trajectories/s" if progress.trajectories else ""
    return f"{progress.step} of {progress.steps} batches, {clock(progress.now_s)} simulated{speed}"


class Lines:
    """A line every few seconds.

    Args:
        write: takes a line without its end.
        clock: seconds.
    """

    def __init__(self, name: str, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._write, self._clock = name, write, clock
        self._at = clock()

    def __call__(self, progress: Progress) -> None:
        """Write a line if the last one is old."""
        now = self._clock()
        if now - self._at >= LINE_EVERY_S:
            self._at = now
            self._write(f"{self._name}: {words(progress)}")
