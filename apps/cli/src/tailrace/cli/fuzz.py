"""``tailrace fuzz``: random pipelines, fleets and faults in the simulator, with the invariants checked at every event."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from tailrace.cli.errors import CommandError
from tailrace.fleetsim.fuzz.as_run import left_out, run_command
from tailrace.fleetsim.fuzz.campaign import Summary, fuzz
from tailrace.fleetsim.fuzz.case import POLICIES, Case
from tailrace.fleetsim.fuzz.draw import draw_case
from tailrace.fleetsim.fuzz.shrink import Shrinker
from tailrace.fleetsim.fuzz.trial import Failure, run_case

FAILED = 1
LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of ``tailrace fuzz``.

    Args:
        replay: a case file to run in place of seeds.
        as_run: print the replayed case as a command of ``tailrace run``.
        jobs: seeds at once.
        shrink_s: seconds to spend on making each kind of failure smaller.
        out: where shrunk cases are written.
    """

    seeds: int = 200
    first_seed: int = 0
    replay: Path | None = None
    as_run: bool = False
    jobs: int = 1
    shrink_s: float = 20.0
    out: Path = Path()


def run(options: Options) -> int:
    """Fuzz, or replay a case; returns the exit status.

    Raises:
        TailraceError: the command or the case is wrong.
    """
    if options.replay is None:
        if options.as_run:
            raise CommandError("--as-run: expected --replay FILE beside it, the case to be run")
        return _fuzz(options)
    case = Case.read(options.replay)
    if options.as_run:
        return _as_run(case)
    return _replay(options.replay, case)


def _fuzz(options: Options) -> int:
    with _shown(options.seeds) as progress:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        summary = fuzz(seeds, processes=options.jobs, progress=progress)
    console = Console()
    show(summary, console)
    kinds: dict[str, list[int]] = {}
    for seed, failure in summary.failures.items():
        kinds.setdefault(failure.kind, []).append(seed)
    for found in kinds.values():
        _tell(found, summary.failures[found[0]], options, console)
    return FAILED if summary.failures else 0


def _tell(seeds: list[int], failure: Failure, options: Options, console: Console) -> None:
    """What broke, the command that replays it, and the smallest case that breaks in the same way."""
    seed = seeds[0]
    others = f", and {len(seeds) - 1} more seeds: {', '.join(map(str, seeds[1:12]))}" if len(seeds) > 1 else ""
    console.print(Text(f"\nseed {seed} broke{others}", style="bold red"))
    _lines(console, str(failure), failure.where, f"replay it:  tailrace fuzz --seeds 1 --first-seed {seed}")
    if not options.shrink_s:
        return
    case = draw_case(seed)
    shrinker = Shrinker(case, failure, limit_s=options.shrink_s)
    small = shrinker.shrink()
    path = options.out / f"fuzz-{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(small.to_json())
    _lines(
        console,
        f"shrunk in {shrinker.tried} trials, from {_size(case)} to {_size(small)}:",
        *(f"  {fault.model_dump_json(exclude_defaults=True)}" for fault in small.faults),
        str(shrinker.failure),
        f"replay it:  tailrace fuzz --replay {path}",
    )


def _replay(path: Path, case: Case) -> int:
    console = Console()
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
    print(run_command(case))
    return 0


def show(summary: Summary, console: Console) -> None:
    """What was run and what was covered."""
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


def _size(case: Case) -> str:
    pipeline = case.pipeline
    return (
        f"{len(case.faults)} faults, {pipeline.steps} steps of {pipeline.prompts_per_step} x {pipeline.samples_per_prompt}, "
        f"{case.replicas} replicas"
    )


def _lines(console: Console, *lines: str) -> None:
    """Text as it is: no markup, and no breaks that a shell would stumble over."""
    for line in lines:
        if line:
            console.print(Text(line), soft_wrap=True)


@contextmanager
def _shown(seeds: int) -> Iterator[Callable[[Summary], None]]:
    """A bar on a terminal, lines elsewhere; on stderr, so that stdout holds what was found."""
    if not sys.stderr.isatty():
        yield _Lines(seeds)
        return
    columns = (TextColumn("fuzzing"), BarColumn(30), MofNCompleteColumn(), TextColumn("{task.fields[words]}"))
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=seeds, words="")
        yield lambda summary: bar.update(task, completed=summary.seeds, words=_words(summary))


class _Lines:
    """A line every few seconds."""

    def __init__(self, seeds: int) -> None:
        self._seeds, self._next_s = seeds, time.monotonic() + LINE_EVERY_S

    def __call__(self, summary: Summary) -> None:
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + LINE_EVERY_S
            print(f"{summary.seeds} of {self._seeds} seeds, {_words(summary)}", file=sys.stderr, flush=True)


def _words(summary: Summary) -> str:
    broke = f", {len(summary.failures)} broke" if summary.failures else ""
    return f"{summary.seeds_per_s:.1f} seeds/s{broke}"
