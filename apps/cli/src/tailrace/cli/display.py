"""Shows a run while it runs: a live display on a terminal, lines elsewhere. Redraws seldom, since it shares the run's cores."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from tailrace.cli.panel import incident_line, line, panel
from tailrace.pipeline.run.status import RunStatus

REDRAWS_PER_SECOND = 2
LINE_EVERY_S = 10.0


@contextmanager
def display(*, plain: bool = False) -> Iterator[RunLines | Screen]:
    """Show the status in this context. Yields what to call with each change of the status."""
    if plain or not sys.stdout.isatty():
        yield RunLines(lambda text: print(text, flush=True))
        return
    console = Console()
    screen = Screen(lambda text: console.print(Text(text, style="yellow")))
    live = Live(
        get_renderable=screen.render, console=console, refresh_per_second=REDRAWS_PER_SECOND, vertical_overflow="crop"
    )
    with live:
        yield screen


class _News:
    """Which incidents were shown already."""

    def __init__(self) -> None:
        self._shown = 0

    def __call__(self, status: RunStatus) -> Iterator[str]:
        """The lines of incidents since the last call."""
        new = status.incidents_total - self._shown
        self._shown = status.incidents_total
        for incident in status.incidents[-new:] if new > 0 else ():
            yield incident_line(incident)


class RunLines:
    """A line for each phase, step, evaluation and incident, and every few seconds between them.

    Args:
        write: takes a line without a newline.
        clock: returns seconds.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._shown: tuple[object, ...] | None = None
        self._at = 0.0
        self._news = _News()

    def say(self, text: str) -> None:
        """Write a line on stderr."""
        sys.stderr.write(f"{text}\n")  # in one piece, since another thread may write
        sys.stderr.flush()

    def __call__(self, status: RunStatus) -> None:
        """Write new incidents, and a line if phase, step or evaluation changed or the last line is old.

        Why a run failed is printed at the end.
        """
        for text in self._news(status):
            self._write(text)
        if status.phase == "failed":
            return
        news = (status.phase, status.step, status.accuracy, status.held_out_reward)
        now = self._clock()
        if news != self._shown or now - self._at >= LINE_EVERY_S:
            self._shown, self._at = news, now
            self._write(line(status, wall_s=status.wall_s))


class Screen:
    """The live display. Incidents are written above it, where they stay."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._status: RunStatus | None = None
        self._write, self._news = write, _News()

    def say(self, text: str) -> None:
        """Write a line above the display."""
        self._write(text)

    def __call__(self, status: RunStatus) -> None:
        """Show a status."""
        self._status = status
        for text in self._news(status):
            self._write(text)

    def render(self) -> RenderableType:
        """The display now."""
        status = self._status
        if status is None:
            return Text("starting", style="dim")
        return panel(status, wall_s=status.wall_s + max(0.0, time.time() - status.updated_at))
