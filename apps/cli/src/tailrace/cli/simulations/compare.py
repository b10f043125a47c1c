"""``tailrace compare``: simulated fleets and real runs, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from tailrace.cli.console import plain_console
from tailrace.cli.errors import FAILED, INTERRUPTED, CommandError, complain
from tailrace.cli.simulations.simulate import (
    check_used,
    devices_of,
    name_of,
    new_directory,
    read_prices,
    shown,
    with_prices,
)
from tailrace.contracts import TailraceError, plugins
from tailrace.fleetsim.results import run_directory
from tailrace.fleetsim.results.advice import findings
from tailrace.fleetsim.results.watch import watch
from tailrace.pipeline.config.loading import parse_setting, validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.target import APPS, configuration
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.report.comparison_page import Compared, compare_page, sentence
from tailrace.report.figures.comparison import comparison, ratios, unique
from tailrace.report.figures.steady import measured, too_few
from tailrace.report.figures.system import Figures, differences
from tailrace.report.html.page import Table, write_page
from tailrace.report.record import read_record

FEWEST = 2
FIRST_COLUMN, GAP = 34, 2  # characters


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The command line of ``tailrace compare``."""

    targets: tuple[str, ...]
    settings: tuple[str, ...] = ()
    seed: int | None = None
    prices: tuple[str, ...] = ()
    out: Path | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class _Simulated:
    """A system to simulate."""

    target: str
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
    prices = read_prices(options.prices)
    found = [_read(target, name, options) for target, name in zip(options.targets, names, strict=True)]
    if (options.settings or options.seed is not None) and not any(isinstance(one, _Simulated) for one in found):
        given = "--set" if options.settings else "--seed"
        raise CommandError(f"found {given} and real runs alone, expected a system that is simulated, which it changes")
    found = _priced(found, prices)
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
    """Print which is fastest, how the systems are unlike, and the table."""
    console = console if console is not None else plain_console()
    compared = comparison(figures)
    console.print(Text(f"\n{sentence(figures)}\n", style="bold"))
    for line in differences(figures):
        console.print(Text(line, style="yellow"))
    fleets = {one.fleet for one in figures}
    for one in figures if len(fleets) > 1 else ():
        console.print(Text.assemble((one.name, "bold"), f"  {one.fleet}"))
    if len(fleets) == 1:
        console.print(Text(figures[0].fleet))
    for columns in _columns(compared, console.width):
        console.print()
        console.print(_table(compared, columns))
    for text in filter(None, [compared.note]):
        console.print(Text(f"\n{text}", style="dim"))
    for system in systems:
        for warning in system.warnings:
            console.print(Text(f"\n{system.figures.name}: {warning}", style="yellow"))
    console.print()
    for path in written.values():
        console.print(Text(str(path), style="dim"), soft_wrap=True)


def _columns(compared: Table, width: int) -> list[list[int]]:
    """Which columns of systems stand in one table: as many as fit beside the names of the rows. Each needs its widest cell."""
    room = width - FIRST_COLUMN
    blocks: list[list[int]] = [[]]
    used = 0
    for place in range(1, len(compared.columns)):
        cells = [compared.columns[place].removeprefix("#"), *(row[place] for row in compared.rows)]
        needs = max(len(cell) for cell in cells) + GAP
        if blocks[-1] and used + needs > room:
            blocks.append([])
            used = 0
        blocks[-1].append(place)
        used += needs
    return blocks


def _table(compared: Table, columns: Sequence[int]) -> RichTable:
    table = RichTable(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(compared.columns[0], overflow="fold")
    for place in columns:
        table.add_column(compared.columns[place].removeprefix("#"), justify="right", overflow="fold")
    for row in compared.rows:
        strong = row[0].startswith("relative to")
        name = row[0].lstrip()
        shown_name = Padding(Text(name, style="bold" if strong else "dim"), (0, 0, 0, len(row[0]) - len(name)))
        table.add_row(shown_name, *(Text(row[place], style="bold" if strong else "") for place in columns))
    return table


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
        return _Simulated(target, name, config, config.seed)
    again = run_directory.again(Path(target))
    if again is None:
        record = read_record(RunDirectory.open(Path(target)))
        figures = measured(record, name)
        return Compared(figures, record.folds, too_few(figures))
    layers = [(target, again.model_dump(mode="json"))]
    layers += [(f"--set {text}", parse_setting(text)) for text in options.settings]
    config = validate(layers)
    return _Simulated(target, name, config, config.seed if options.seed is None else options.seed)


def _priced(found: Sequence[_Simulated | Compared], prices: Mapping[str, float]) -> list[_Simulated | Compared]:
    """The systems with their prices. All are checked before any is simulated, which may take minutes.

    Raises:
        CommandError: a fleet cannot be, or a price is of no device of theirs.
    """
    fleets = [devices_of(system.target, system.config) for system in found if isinstance(system, _Simulated)]
    check_used(prices, {device for fleet in fleets for device in fleet})
    priced = [
        replace(system, config=with_prices(system.config, prices)) if isinstance(system, _Simulated) else system
        for system in found
    ]
    for system in priced if prices else ():
        if isinstance(system, _Simulated):
            devices_of(system.target, system.config)
    return priced


def _simulate(system: _Simulated) -> Compared:
    try:
        with shown(system.name) as listener:
            watched = watch(system.config, name=system.name, seed=system.seed, keep_events=False, listener=listener)
    except TailraceError as error:
        raise CommandError(f"{system.name}: {error}") from error
    return Compared(watched.figures, watched.folds, findings(watched))


def _plain(systems: Sequence[Compared]) -> dict[str, object]:
    figures = [system.figures for system in systems]
    rows = [
        {**one.to_json(), "relative": ratio, "warnings": list(system.warnings)}
        for system, one, ratio in zip(systems, figures, ratios(figures), strict=True)
    ]
    return {"format": run_directory.FORMAT, "systems": rows, "differences": differences(figures)}


def _write(systems: Sequence[Compared], root: Path) -> dict[str, Path]:
    title = ", ".join(system.figures.name for system in systems)
    root.mkdir(parents=True, exist_ok=True)
    plain = root / "compare.json"
    write_json(plain, _plain(systems))
    return {"page": write_page(root / "compare.html", compare_page(systems, title)), "figures": plain}
