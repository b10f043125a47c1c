"""``tailrace reproduce``: the printed numbers of a paper, or of all, beside those of the simulator."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from tailrace.cli.console import plain_console
from tailrace.cli.outputs import check_file, write_file
from tailrace.cli.runs.display import clock
from tailrace.contracts import plugins
from tailrace.fleetsim.errors import ReproductionError
from tailrace.fleetsim.reproduce import Paper, PaperSummary, TargetRecord, reproduce, summarise
from tailrace.fleetsim.reproduce.drawing import draw
from tailrace.fleetsim.reproduce.paper import GROUP, LabProgress, Reproduction
from tailrace.fleetsim.reproduce.targets import NOT_SIMULATED, Value

LINE_EVERY_S = 5.0
ALL = "all"


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
    """Simulate, print the tables and write the files.

    Raises:
        TailraceError: the paper or a target does not exist, or a file cannot be written. Nothing was simulated.
    """
    check_file("--json", options.json_file)
    check_file("--html", options.page)
    jobs = options.jobs or os.cpu_count() or 1
    papers = sorted(plugins.names(GROUP)) if options.paper == ALL else [options.paper]
    only = _by_paper(papers, options.only)
    begun = time.monotonic()
    console = plain_console() if sys.stdout.isatty() else plain_console(width=200)
    found: dict[str, Reproduction] = {}
    for paper in papers:
        if options.only and not only[paper]:
            continue
        with _shown(paper) as listener:
            found[paper] = reproduce(paper, only=only[paper], processes=jobs, quick=options.quick, listener=listener)
        show(paper, found[paper], console, quick=options.quick)
    records = [record for one in found.values() for record in one.records]
    if options.json_file is not None:
        write_file(options.json_file, json.dumps([record.plain() for record in records], indent=1) + "\n")
    if options.page is not None:
        write_file(options.page, draw(options.paper, records))
    if len(found) > 1:
        for paper, one in found.items():
            console.print(Text(score(paper, summarise(one.records, one.compared)), style="bold"))
    console.print(Text(f"{clock(time.monotonic() - begun)} on {jobs} processes", style="dim"))
    for path in (options.json_file, options.page):
        if path is not None:
            console.print(Text(f"written: {path}", style="dim"))


def _by_paper(papers: Sequence[str], only: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The targets that were asked for, by paper. One that no paper has stays with the first, which complains."""
    if len(papers) == 1:
        return {papers[0]: tuple(only)}
    known = {paper: {target.id for target in cast(Paper, plugins.load(GROUP, paper)).targets()} for paper in papers}
    unknown = sorted(set(only) - set().union(*known.values()))
    if unknown:
        raise ReproductionError(
            f"found the target {unknown[0]!r}, which no paper has, expected one that reproduce prints"
        )
    return {paper: tuple(id_ for id_ in only if id_ in ids) for paper, ids in known.items()}


def show(paper: str, found: Reproduction, console: Console, *, quick: bool) -> None:
    """Print a paper's table, its orders and its score."""
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
    for change in found.changes:
        console.print(Text(f"changed on {change.date}: {change.what}", style="dim"))
    summary = summarise(found.records, found.compared)
    for line in beside(summary):
        console.print(Text(line, style="dim"))
    if quick:
        console.print(Text("of quick runs, which are no score:", style="dim"))
    console.print(Text(score(paper, summary), style="bold"))


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
    if record.ours is None and kind in NOT_SIMULATED:
        return Text(str(kind), style="dim")
    used = f"{kind}, once fitted" if record.target.was_fitted else str(kind)
    return Text(f"{'within' if holds else 'misses'}, {used}", style="green" if holds else "yellow")


def score(paper: str, summary: PaperSummary) -> str:
    """The score of a paper, in one line."""
    found = summary.predictions
    errors = f"median error {found.median:.1%}, worst {found.worst:,.0%} ({found.worst_id}), " if found.groups else ""
    return f"{paper}: predictions scored {found.groups}, {errors}statements right {found.right} of {found.statements}"


def beside(summary: PaperSummary) -> Iterator[str]:
    """What stands beside the score and is no part of it."""
    found = summary.predictions
    if found.apart:
        yield (
            f"{found.apart} more predictions that parameters were once chosen on stand apart; with them the median error is "
            f"{found.median_with:.1%}"
        )
    if found.compared:
        yield (
            f"of the {found.compared} where that means something {found.compared_median:.1%}, without effects "
            f"{found.without_effects:.1%}"
        )
    if found.groups:
        yield f"worst single value of {found.worst_value_id} {found.worst_value:,.0%}"
    if summary.comparisons:
        yield f"orders right {summary.right} of {summary.comparisons}"


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
    with Bar(*columns, console=plain_console(stderr=True), transient=True) as bar:
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
