"""``tailrace reproduce``: a paper's printed numbers beside those of the simulator."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from tailrace.cli.panel import clock
from tailrace.fleetsim.reproduce import PaperSummary, TargetRecord, reproduce, summarise
from tailrace.fleetsim.reproduce.drawing import draw
from tailrace.fleetsim.reproduce.lab import LabProgress
from tailrace.fleetsim.reproduce.paper import Reproduction
from tailrace.fleetsim.reproduce.records import Predictions
from tailrace.fleetsim.reproduce.targets import NOT_SIMULATED, Value

LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class ReproduceOptions:
    """The command line of ``tailrace reproduce``."""

    paper: str
    only: tuple[str, ...] = ()
    json_file: Path | None = None
    page: Path | None = None
    jobs: int | None = None
    quick: bool = False


def show_reproduction(options: ReproduceOptions) -> None:
    """Simulate, print the table and write the files.

    Raises:
        TailraceError: the paper or a target does not exist.
    """
    jobs = options.jobs or os.cpu_count() or 1
    begun = time.monotonic()
    with _shown(options.paper) as listener:
        found = reproduce(options.paper, only=options.only, processes=jobs, quick=options.quick, listener=listener)
    wall_s = time.monotonic() - begun
    if options.json_file is not None:
        options.json_file.write_text(json.dumps([record.plain() for record in found.records], indent=1) + "\n")
    if options.page is not None:
        options.page.write_text(draw(options.paper, found.records))
    console = Console() if sys.stdout.isatty() else Console(width=200)
    show(found, console)
    console.print(Text(f"{clock(wall_s)} on {jobs} processes", style="dim"))
    for path in (options.json_file, options.page):
        if path is not None:
            console.print(Text(f"written: {path}", style="dim"))


def show(found: Reproduction, console: Console) -> None:
    """Print the table, the orders and a summary."""
    console.print(table(found.records))
    misses = [record for record in found.records if not record.within and record.target.kind not in NOT_SIMULATED]
    for record in misses:
        why = record.failed or record.target.reason or "not explained yet"
        console.print(Text(f"{record.target.id}: {why}", style="yellow"))
    for one in found.compared:
        right = sum(holds for _, holds in one.comparisons)
        console.print(Text(f"{one.statement}: {right} of {len(one.comparisons)}"))
        for words in (words for words, holds in one.comparisons if not holds):
            console.print(Text(f"    not: {words}", style="yellow"))
    console.print(Text(in_short(summarise(found.records, found.compared)), style="bold"))


def table(records: list[TargetRecord]) -> Table:
    """One row for each value."""
    rows = Table(box=None, pad_edge=False)
    rows.add_column("target", no_wrap=True)
    rows.add_column("what", overflow="fold")
    for name in ("paper", "ours", "error", "tolerance"):
        rows.add_column(name, justify="right", no_wrap=True)
    rows.add_column("", no_wrap=True)
    for record in records:
        target = record.target
        for index, paper in enumerate(target.paper):
            ours = None if record.ours is None else record.ours[index]
            label = f", {target.labels[index]}" if target.labels else ""
            rows.add_row(
                target.id if index == 0 else "",
                target.metric + label if index == 0 else label.removeprefix(", "),
                _number(paper, target.unit),
                "" if ours is None else _number(ours, target.unit),
                "" if ours is None else f"{record.errors[index]:.1%}",
                str(target.tolerance_of(index)),
                _verdict(record, index),
            )
    return rows


def _verdict(record: TargetRecord, index: int) -> Text:
    """Whether a value is within its tolerance, and what its target is used for."""
    kind, holds = record.target.kind, record.holds(index)
    used = ("" if record.held_out else ", fitted") if kind is None else f", {kind}"
    if record.ours is None and kind in NOT_SIMULATED:
        return Text(str(kind), style="dim")
    return Text(("within" if holds else "misses") + used, style="green" if holds else "yellow")


def in_short(summary: PaperSummary) -> str:
    """The summary, printed as the last line."""
    parts = []
    if summary.predictions is not None:
        return _predicted(summary.predictions)
    if summary.median_error is not None:
        parts.append(f"median error of {summary.ratios} held-out ratios {summary.median_error:.1%}")
    if summary.comparisons:
        parts.append(f"orderings right {summary.right} of {summary.comparisons}")
    parts.append(f"within tolerance {summary.within} of {summary.targets}")
    parts.append(f"held out {summary.held_out_within} of {summary.held_out}")
    return ", ".join(parts)


def _predicted(found: Predictions) -> str:
    return (
        f"median error of {found.groups} predictions {found.median:.1%}; of the {found.compared} where that means something "
        f"{found.compared_median:.1%}, without effects {found.without_effects:.1%}; worst {found.worst_id} {found.worst:.0%}, "
        f"worst value of {found.worst_value_id} {found.worst_value:.0%}; statements right {found.right} of {found.statements}"
    )


def _number(value: Value, unit: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    after = {"x": "x", "s": " s"}.get(unit, "")
    return f"{value:.3g}{after}" if abs(value) < 1000 else f"{value:,.0f}{after}"


@contextmanager
def _shown(paper: str) -> Iterator[Callable[[LabProgress], None]]:
    """Show progress on stderr: a bar on a terminal, lines elsewhere. Yields a function to call with it."""
    if not sys.stderr.isatty():
        yield _Lines(paper)
        return
    columns = (TextColumn("simulating [bold]{task.description}"), BarColumn(30), TextColumn("{task.fields[words]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(paper, total=None, words="")
        yield lambda progress: bar.update(task, total=progress.points, completed=progress.done, words=_words(progress))


class _Lines:
    def __init__(self, paper: str) -> None:
        self._paper, self._at = paper, time.monotonic()

    def __call__(self, progress: LabProgress) -> None:
        now = time.monotonic()
        if now - self._at >= LINE_EVERY_S or progress.done == progress.points:
            self._at = now
            print(f"{self._paper}: {_words(progress)}", file=sys.stderr, flush=True)


def _words(progress: LabProgress) -> str:
    return (
        f"{progress.done} of {progress.points} simulations, {progress.trajectories:,} trajectories, "
        f"{clock(progress.wall_s)}"
    )
