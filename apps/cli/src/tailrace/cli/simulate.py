"""``tailrace simulate``: a configuration on a modelled fleet, and what is found."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.cli.complaints import complain, one_line
from tailrace.cli.errors import CommandError
from tailrace.cli.progress import shown
from tailrace.contracts import TailraceError
from tailrace.fleetsim.errors import StalledError
from tailrace.fleetsim.picture import files, words
from tailrace.fleetsim.picture.advice import advice
from tailrace.fleetsim.picture.figures import simulated
from tailrace.fleetsim.picture.watch import Watched
from tailrace.pipeline.config.target import configuration

INTERRUPTED, FAILED = 130, 1
SIMULATIONS = Path("simulations")


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of ``tailrace simulate``."""

    target: str
    settings: tuple[str, ...] = ()
    seed: int | None = None
    run_dir: Path | None = None
    as_json: bool = False
    keep_events: bool = True


def simulate(options: Options) -> int:
    """Simulate, print and write; returns the exit status.

    Raises:
        TailraceError: something is wrong with the command or the configuration; nothing was written.
    """
    config = configuration(options.target, settings=options.settings, seed=options.seed)
    name = name_of(options.target)
    root = options.run_dir if options.run_dir is not None else new_directory(name)
    files.check_new(root)
    try:
        with shown(name) as listener:
            watched, written = files.simulate_into(
                root, config, name=name, keep_events=options.keep_events, listener=listener
            )
    except KeyboardInterrupt:
        return complain("interrupted; nothing was written", status=INTERRUPTED)
    except StalledError as error:
        return complain(f"the simulated run can make no progress: {one_line(error)}; see {root}", status=FAILED)
    except TailraceError as error:
        raise CommandError(f"{options.target}: {error}") from error
    if options.as_json:
        print(json.dumps({**files.plain(watched), "files": {key: str(path) for key, path in written.items()}}))
    else:
        show(watched, written)
    return FAILED if watched.result.failure is not None else 0


def show(watched: Watched, written: dict[str, Path], console: Console | None = None) -> None:
    """Print what was found."""
    console = console if console is not None else Console()
    figures = simulated(watched)
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in words.rows(watched, figures):
        table.add_row(name, Text(text, style="bold" if name == "throughput" else ""))
    speed = watched.result.trajectories / watched.wall_s if watched.wall_s else 0.0
    table.add_row("simulated in", f"{watched.wall_s:,.1f} s, {speed:,.0f} trajectories/s")
    table.add_row("written", "\n".join(str(written[name]) for name in ("report", "timeline", "result")))
    console.print(Text(f"\n{watched.name}\n", style="bold"))
    console.print(table)
    for note in figures.notes:
        console.print(Text(f"\n{note}", style="dim"))
    for warning in advice(watched, figures):
        console.print(Text(f"\n{warning}", style="yellow"))


def name_of(target: str) -> str:
    """The name of what is simulated: a file's without its ending, or the app's."""
    return Path(target).stem if target.endswith(".toml") else target


def new_directory(name: str) -> Path:
    """A directory that is not there yet, named for now."""
    wanted = SIMULATIONS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    number, root = 2, wanted
    while root.exists():
        root, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return root
