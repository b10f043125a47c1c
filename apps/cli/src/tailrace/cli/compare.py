"""``tailrace compare``: simulated fleets and real runs, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from tailrace.cli.complaints import complain
from tailrace.cli.errors import CommandError
from tailrace.cli.progress import shown
from tailrace.cli.simulate import FAILED, INTERRUPTED, name_of, new_directory
from tailrace.contracts import TailraceError, plugins
from tailrace.fleetsim import run_directory
from tailrace.fleetsim.advice import advice
from tailrace.fleetsim.build import build_fleet
from tailrace.fleetsim.watch import watch
from tailrace.pipeline.config.loading import parse_setting, validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.target import APPS, configuration
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.report.charts.comparison import Compared
from tailrace.report.comparison_page import compare_page, sentence
from tailrace.report.figures.comparison import comparison, ratios, unique
from tailrace.report.figures.figures import Figures
from tailrace.report.figures.steady import measured
from tailrace.report.html.page import write_page
from tailrace.report.record import read_record

FEWEST = 2


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The command line of ``tailrace compare``."""

    targets: tuple[str, ...]
    settings: tuple[str, ...] = ()
    seed: int | None = None
    out: Path | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class _Simulated:
    """A system to simulate."""

    name: str
    config: RunConfig
    seed: int


def compare(options: CompareOptions) -> int:
    """Simulate or read each system, print the table and write the files. Returns the exit status.

    Raises:
        TailraceError: the command, a configuration or a run is wrong; no file was written.
    """
    if len(options.targets) < FEWEST:
        raise CommandError(f"found {len(options.targets)} system, expected {FEWEST} or more to compare")
    root = options.out if options.out is not None else new_directory("compare")
    run_directory.check_new(root)
    names = unique([_name(target) for target in options.targets])
    found = [_read(target, name, options) for target, name in zip(options.targets, names, strict=True)]
    try:
        systems = [_simulate(system) if isinstance(system, _Simulated) else system for system in found]
    except KeyboardInterrupt:
        return complain("interrupted; nothing was written", status=INTERRUPTED)
    written = _write(systems, root)
    figures = [system.figures for system in systems]
    if options.as_json:
        print(json.dumps({**_plain(systems), "files": {key: str(path) for key, path in written.items()}}))
    else:
        show(systems, figures, written)
    return FAILED if any("The run gave up" in text for system in systems for text in system.warnings) else 0


def show(
    systems: Sequence[Compared], figures: Sequence[Figures], written: dict[str, Path], console: Console | None = None
) -> None:
    """Print the table."""
    console = console if console is not None else Console()
    compared = comparison(figures)
    table = RichTable(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in compared.columns:
        number = column.startswith("#")
        table.add_column(column.removeprefix("#"), justify="right" if number else "left", overflow="fold")
    for row in compared.rows:
        strong = row[0].startswith("relative to")
        name = row[0].lstrip()
        shown_name = Padding(Text(name, style="bold" if strong else "dim"), (0, 0, 0, len(row[0]) - len(name)))
        table.add_row(shown_name, *(Text(cell, style="bold" if strong else "") for cell in row[1:]))
    console.print(Text(f"\n{sentence(figures)}\n", style="bold"))
    fleets = {one.fleet for one in figures}
    for one in figures if len(fleets) > 1 else ():
        console.print(Text.assemble((one.name, "bold"), f"  {one.fleet}"))
    console.print(Text("" if len(fleets) > 1 else f"{figures[0].fleet}\n"))
    console.print(table)
    for text in filter(None, [compared.note]):
        console.print(Text(f"\n{text}", style="dim"))
    for system in systems:
        for warning in system.warnings:
            console.print(Text(f"\n{system.figures.name}: {warning}", style="yellow"))
    console.print()
    for path in written.values():
        console.print(Text(str(path), style="dim"))


def _name(target: str) -> str:
    return Path(target).resolve().name if _is_directory(target) else name_of(target)


def _is_directory(target: str) -> bool:
    """Whether a target is a run directory, and not just a directory with the name of an app."""
    path = Path(target)
    return path.is_dir() and (RunDirectory(path).config.exists() or target not in plugins.names(APPS))


def _read(target: str, name: str, options: CompareOptions) -> _Simulated | Compared:
    """Check a system to simulate, or read a real run.

    Raises:
        TailraceError: the target is wrong.
    """
    if not _is_directory(target):
        config = configuration(target, settings=options.settings, seed=options.seed)
        return _checked(target, _Simulated(name, config, config.seed))
    again = run_directory.again(Path(target))
    if again is None:
        record = read_record(RunDirectory.open(Path(target)))
        return Compared(measured(record, name), record.folds)
    layers = [(target, again.model_dump(mode="json"))]
    layers += [(f"--set {text}", parse_setting(text)) for text in options.settings]
    config = validate(layers)
    return _checked(target, _Simulated(name, config, config.seed if options.seed is None else options.seed))


def _checked(target: str, system: _Simulated) -> _Simulated:
    """Check a system, so that it is refused before others are simulated for minutes."""
    try:
        build_fleet(system.config, seed=system.seed)
    except TailraceError as error:
        raise CommandError(f"{target}: {error}") from error
    return system


def _simulate(system: _Simulated) -> Compared:
    try:
        with shown(system.name) as listener:
            watched = watch(system.config, name=system.name, seed=system.seed, keep_events=False, listener=listener)
    except TailraceError as error:
        raise CommandError(f"{system.name}: {error}") from error
    return Compared(watched.figures, watched.folds, advice(watched))


def _plain(systems: Sequence[Compared]) -> dict[str, object]:
    figures = [system.figures for system in systems]
    rows = [
        {**one.to_json(), "relative": ratio, "warnings": list(system.warnings)}
        for system, one, ratio in zip(systems, figures, ratios(figures), strict=True)
    ]
    return {"format": run_directory.FORMAT, "systems": rows}


def _write(systems: Sequence[Compared], root: Path) -> dict[str, Path]:
    title = ", ".join(system.figures.name for system in systems)
    root.mkdir(parents=True, exist_ok=True)
    plain = root / "compare.json"
    write_json(plain, _plain(systems))
    return {"page": write_page(root / "compare.html", compare_page(systems, title)), "figures": plain}
