"""``tailrace simulate``: simulates a configuration on a modelled fleet and prints the results."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from tailrace.cli.console import plain_console
from tailrace.cli.errors import FAILED, INTERRUPTED, CommandError, complain, one_line
from tailrace.cli.runs.display import clock
from tailrace.contracts import TailraceError, expected_one_of
from tailrace.fleetsim.errors import StalledError
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.results import run_directory
from tailrace.fleetsim.results.outcome import answer, rows
from tailrace.fleetsim.results.watch import SimulationProgress, Watched
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.errors import RunWriteError
from tailrace.pipeline.run.directory import read_json

SIMULATIONS = Path("simulations")


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The command line of ``tailrace simulate``."""

    target: str
    settings: tuple[str, ...] = ()
    seed: int | None = None
    prices: tuple[str, ...] = ()
    run_dir: Path | None = None
    as_json: bool = False
    keep_events: bool = True


def simulate(options: SimulateOptions) -> int:
    """Simulate, print the results and write the files. Returns the exit status.

    Raises:
        TailraceError: the command or the configuration is wrong; no file was written.
    """
    prices = read_prices(options.prices)
    config = configuration(options.target, settings=options.settings, seed=options.seed)
    name = name_of(options.target)
    root = options.run_dir if options.run_dir is not None else new_directory(name)
    run_directory.check_new(root)
    check_used(prices, devices_of(options.target, config))
    config = with_prices(config, prices)
    try:
        with shown(name) as listener:
            watched, written = run_directory.simulate_into(
                root,
                config,
                name=name,
                keep_events=options.keep_events,
                listener=listener,
                said=lambda text: print(f"{name}: {text}", file=sys.stderr, flush=True),
            )
    except KeyboardInterrupt:
        return complain("interrupted; nothing was written", status=INTERRUPTED)
    except StalledError as error:
        return complain(f"the simulated run makes no progress: {one_line(error)}; see {root}", status=FAILED)
    except RunWriteError as error:  # of a log it would say how to resume, which nobody does with a simulated run
        raise CommandError(f"{error.filename}: could not be written: {error.strerror}") from error
    except TailraceError as error:
        raise CommandError(f"{options.target}: {error}") from error
    if options.as_json:
        found = read_json(written["result"])
        print(json.dumps({**found, "files": {key: str(path) for key, path in written.items()}}))
    else:
        show(watched, written)
    return FAILED if watched.result.failure is not None else 0


def devices_of(target: str, config: RunConfig) -> Collection[str]:
    """The names of the devices of a fleet, which is checked by building it.

    Raises:
        CommandError: the fleet cannot be. The message begins with the target.
    """
    try:
        return build_fleet(config, seed=config.seed).devices
    except TailraceError as error:
        raise CommandError(f"{target}: {error}") from error


def show(watched: Watched, written: dict[str, Path], console: Console | None = None) -> None:
    """Print the results: what was asked first, then the table."""
    console = console if console is not None else plain_console()
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows(watched):
        table.add_row(name, Text(text, style="bold" if name == "throughput" else ""))
    speed = watched.result.trajectories / watched.wall_s if watched.wall_s else 0.0
    table.add_row("simulated in", f"{watched.wall_s:,.1f} s, {speed:,.0f} trajectories/s")
    console.print(Text(f"\n{answer(watched)}\n", style="bold"))
    console.print(table)
    for note in watched.figures.notes:
        console.print(Text(f"\n{note}", style="dim"))
    for warning in read_json(written["result"])["warnings"]:
        console.print(Text(f"\n{warning}", style="yellow"))
    console.print()
    for name in ("report", "result"):
        console.print(Text(str(written[name]), style="dim"), soft_wrap=True)


def name_of(target: str) -> str:
    """The name of the simulated system: a file's name without its ending, or the app's."""
    return Path(target).stem if target.endswith(".toml") else target


def new_directory(name: str) -> Path:
    """A path that does not exist yet, with the current time in its name."""
    wanted = SIMULATIONS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    number, root = 2, wanted
    while root.exists():
        root, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return root


EXPECTED = "expected DEVICE=NUMBER, what one device costs for an hour, such as H800=2.1"


def read_prices(texts: Sequence[str]) -> dict[str, float]:
    """Prices by device.

    Raises:
        CommandError: a text is no price, or a device has two.
    """
    prices: dict[str, float] = {}
    for text in texts:
        name, _, number = (part.strip() for part in text.partition("="))
        if not name or not number:
            raise CommandError(f"--price {text}: {EXPECTED}")
        try:
            value = float(number)
        except ValueError:
            raise CommandError(f"--price {text}: found {number!r}, {EXPECTED}") from None
        if not math.isfinite(value) or value < 0:
            raise CommandError(f"--price {text}: found {number}, expected a finite number of at least 0")
        if name in prices:
            raise CommandError(f"--price {text}: found a second price of {name}, expected one of each device")
        prices[name] = value
    return prices


def with_prices(config: RunConfig, prices: Mapping[str, float]) -> RunConfig:
    """The configuration with these prices over its own. Wrong ones of its own stay, for the fleet's checks to name."""
    own = config.fleet.get("prices", {})
    if not prices or not isinstance(own, Mapping):
        return config
    return config.model_copy(update={"fleet": {**config.fleet, "prices": {**own, **prices}}})


def check_used(prices: Mapping[str, float], devices: Collection[str]) -> None:
    """Check that each price is of a device that takes part.

    Args:
        devices: the names of the devices of all fleets.

    Raises:
        CommandError: a price is of another device.
    """
    known = sorted(set(devices))
    for name, value in prices.items():
        if name not in known:
            raise CommandError(f"--price {name}={value:g}: found no such device here, {expected_one_of(name, known)}")


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
    with Bar(*columns, console=plain_console(stderr=True), transient=True) as bar:
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
