"""``tailrace fuzz``: random pipelines, fleets and faults in the simulator, with the invariants checked at every event."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from tailrace.cli.console import plain_console
from tailrace.cli.errors import FAILED, CommandError
from tailrace.cli.json_text import json_text
from tailrace.contracts import expected_one_of, plugins
from tailrace.fuzz.as_run import left_out, run_command, settings_left_out
from tailrace.fuzz.campaign import CampaignSummary, fuzz
from tailrace.fuzz.case import Case
from tailrace.fuzz.policies import POLICIES
from tailrace.fuzz.trial import run_case

LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class FuzzOptions:
    """The command line of ``tailrace fuzz``.

    Args:
        seeds: number of seeds.
        first_seed: the first seed.
        replay: a case file to run instead of seeds.
        as_run: print the replayed case as a command of ``tailrace run``.
        jobs: seeds to run at once.
        shrink_s: seconds to spend on shrinking each kind of failure.
        out: directory for shrunk cases.
        policies: plugins to use in every case, each `AXIS=NAME`.
        plugins: the same, each by its name alone.
    """

    seeds: int = 200
    first_seed: int = 0
    replay: Path | None = None
    as_run: bool = False
    jobs: int = 1
    shrink_s: float = 20.0
    out: Path = Path()
    policies: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()


def run(options: FuzzOptions) -> int:
    """Fuzz, or replay a case. Returns the exit status.

    Raises:
        TailraceError: the command or the case is wrong.
    """
    if options.replay is None:
        if options.as_run:
            raise CommandError("--as-run: expected --replay FILE beside it, the case to be run")
        return _fuzz(options)
    if options.policies or options.plugins:
        raise CommandError(
            "found --policy or --with beside --replay, expected neither: a saved case has its own policies"
        )
    case = Case.read(options.replay)
    if options.as_run:
        return _as_run(case)
    return _replay(options.replay, case)


def chosen(options: FuzzOptions) -> dict[str, str]:
    """The plugins that are in every case, by axis.

    Raises:
        CommandError: a name is on no axis or on several, or two plugins are on one axis.
    """
    found: dict[str, str] = {}
    named = [policy.partition("=")[::2] for policy in options.policies]
    for axis, name in [*named, *((_axis_of(name), name) for name in options.plugins)]:
        if found.get(axis, name) != name:
            raise CommandError(f"found {found[axis]!r} and {name!r} on axis {axis}, expected one policy of each axis")
        found[axis] = name
    return found


def _axis_of(name: str) -> str:
    registered = {axis: plugins.names(f"tailrace.{axis}") for axis in POLICIES}
    axes = [axis for axis, names in registered.items() if name in names]
    if not axes:
        known = sorted({each for names in registered.values() for each in names})
        raise CommandError(f"--with {name}: found no such policy, {expected_one_of(name, known)}")
    if len(axes) > 1:
        raise CommandError(
            f"--with {name}: found it on the axes {' and '.join(axes)}, expected --policy {axes[0]}={name}"
        )
    return axes[0]


def _fuzz(options: FuzzOptions) -> int:
    policies = chosen(options)
    with _shown(options.seeds) as progress:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        findings = fuzz(
            seeds,
            processes=options.jobs,
            shrink_s=options.shrink_s,
            out=options.out,
            progress=progress,
            **policies,
        )
    console = plain_console()
    show(findings.summary, console)
    mine = "".join(f" --policy {axis}={name}" for axis, name in policies.items())
    for found in findings.found:
        first, *told = str(found).splitlines()
        console.print(Text(f"\n{first}", style="bold red"))
        _lines(console, *told, f"replay it:  tailrace fuzz --seeds 1 --first-seed {found.seeds[0]}{mine}")
        if found.path is not None:
            _lines(console, f"replay it:  tailrace fuzz --replay {shlex.quote(str(found.path))}")
    return FAILED if findings.found else 0


def _replay(path: Path, case: Case) -> int:
    console = plain_console()
    trial = run_case(case, twice=True)
    if trial.failure is not None:
        console.print(Text(f"{path} breaks", style="bold red"))
        _lines(console, str(trial.failure), trial.failure.where)
        return FAILED
    _lines(console, f"{path} holds: {trial.ended} after {trial.duration_s:.1f} s and {trial.instants} instants")
    return 0


def _as_run(case: Case) -> int:
    for fault in left_out(case):
        print(f"left out, only the simulator has it: {fault.model_dump_json(exclude_defaults=True)}", file=sys.stderr)
    for name, value in settings_left_out(case).items():
        print(f"left out, the run has its own: {name} = {json_text(value)}", file=sys.stderr)
    print(run_command(case))
    return 0


def show(summary: CampaignSummary, console: Console) -> None:
    """Print what was run and covered."""
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    ended = ", ".join(f"{count:,} {how}" for how, count in sorted(summary.ended.items()))
    broke = Text(f"{len(summary.failures):,} broke", style="bold red" if summary.failures else "bold green")
    table.add_row("seeds", Text.assemble(f"{summary.seeds:,}: {ended}, ", broke))
    events = summary.covered.get("events", Counter()).total()
    table.add_row(
        "events", f"{events:,} in {summary.instants:,} instants, {summary.simulated_s / 3600:,.1f} h simulated"
    )
    table.add_row("speed", f"{summary.seeds_per_s:,.1f} seeds/s, {summary.wall_s:,.1f} s")
    for axis in POLICIES:
        policies: Mapping[str, int] = summary.covered.get("policies", Counter())
        found = {name.partition(" ")[2]: count for name, count in policies.items() if name.startswith(f"{axis} ")}
        table.add_row(axis, _counted(found))
    table.add_row("by event", _counted(summary.covered.get("events", Counter())))
    table.add_row("faults", _counted(summary.covered.get("faults", Counter())))
    table.add_row("happened", _counted(summary.covered.get("happened", Counter())))
    console.print(table)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def _lines(console: Console, *lines: str) -> None:
    """Print text without markup or line breaks, so that it can be pasted into a shell."""
    for line in lines:
        if line:
            console.print(Text(line), soft_wrap=True)


@contextmanager
def _shown(seeds: int) -> Iterator[Callable[[CampaignSummary], None]]:
    """Show progress by a bar on a terminal and by lines elsewhere; on stderr, so that stdout has only the results."""
    if not sys.stderr.isatty():
        yield _Lines(seeds)
        return
    columns = (TextColumn("fuzzing"), BarColumn(30), MofNCompleteColumn(), TextColumn("{task.fields[words]}"))
    with Bar(*columns, TimeRemainingColumn(), console=plain_console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=seeds, words="")
        broken = _Broken(bar.console.print)

        def update(summary: CampaignSummary) -> None:
            broken(summary)
            bar.update(task, completed=summary.seeds, words=_words(summary))

        yield update


class _Broken:
    """Tells of each seed that broke, once."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._told = tell, set[int]()

    def __call__(self, summary: CampaignSummary) -> None:
        for seed in summary.failures.keys() - self._told:
            self._told.add(seed)
            self._tell(f"seed {seed} broke: {summary.failures[seed].what:.200}")


class _Lines:
    """Prints a line every few seconds, and one for each seed that broke."""

    def __init__(self, seeds: int) -> None:
        self._seeds, self._next_s = seeds, time.monotonic() + LINE_EVERY_S
        self._broken = _Broken(partial(print, file=sys.stderr, flush=True))

    def __call__(self, summary: CampaignSummary) -> None:
        self._broken(summary)
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + LINE_EVERY_S
            print(f"{summary.seeds} of {self._seeds} seeds, {_words(summary)}", file=sys.stderr, flush=True)


def _words(summary: CampaignSummary) -> str:
    broke = f", {len(summary.failures)} broke" if summary.failures else ""
    return f"{summary.seeds_per_s:.1f} seeds/s{broke}"
