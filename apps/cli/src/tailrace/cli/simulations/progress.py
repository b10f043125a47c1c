"""Shows the progress of a simulation: a bar on a terminal, lines elsewhere. On stderr, so that stdout has only the results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from tailrace.cli.runs.display import clock
from tailrace.fleetsim.results.watch import SimulationProgress

LINE_EVERY_S = 5.0


@contextmanager
def shown(name: str) -> Iterator[Callable[[SimulationProgress], None]]:
    """Show progress in this context. Yields a function to call with it.

    Args:
        name: the name of the simulated system.
    """
    if not sys.stderr.isatty():
        yield ProgressLines(name, lambda text: print(text, file=sys.stderr, flush=True))
        return
    columns = (TextColumn("simulating [bold]{task.description}"), BarColumn(30), TextColumn("{task.fields[words]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name.replace("[", "\\["), total=None, words="")

        def listen(progress: SimulationProgress) -> None:
            bar.update(task, total=progress.steps, completed=progress.step, words=words(progress))

        yield listen


def words(progress: SimulationProgress) -> str:
    """The progress in one line."""
    speed = f", {progress.trajectories_per_s:,.0f} trajectories/s" if progress.trajectories else ""
    return f"{progress.step} of {progress.steps} batches, {clock(progress.now_s)} simulated{speed}"


class ProgressLines:
    """Prints a line every few seconds.

    Args:
        name: the name of the simulated system.
        write: takes a line without a newline.
        clock: returns seconds.
    """

    def __init__(self, name: str, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._write, self._clock = name, write, clock
        self._at = clock()

    def __call__(self, progress: SimulationProgress) -> None:
        """Write a line if the last one is old."""
        now = self._clock()
        if now - self._at >= LINE_EVERY_S:
            self._at = now
            self._write(f"{self._name}: {words(progress)}")
