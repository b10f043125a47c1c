"""``tailrace run --dry-run``: checks everything that can be checked and prints what a run would do, without starting it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.cli.console import plain_console
from tailrace.contracts import TailraceError
from tailrace.controller.spec import AXES
from tailrace.fleetsim.footprint import Footprint, MemoryPlace, OwnedBytes
from tailrace.fleetsim.footprint.memory import gigabytes
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.checkpoint_plan import checkpoints_in_words
from tailrace.pipeline.run.engine import selected_engine
from tailrace.pipeline.run.engine_abilities import applies_adapters, sleep_level
from tailrace.pipeline.run.environment_setup import has_own_rows, held_out_problems
from tailrace.pipeline.run.prompts.reading import PromptCounts
from tailrace.pipeline.run.prompts.stop_tokens import stops_in_words


def show_plan(
    config: RunConfig,
    root: Path,
    counts: Mapping[str, PromptCounts] | None,
    found: Footprint,
    console: Console | None = None,
) -> None:
    """Print what a run would do.

    Args:
        config: the configuration.
        root: the run directory that would be created.
        counts: what became of the rows of each prompt file; None on paper, where no file is read.
        found: what the run takes.
        console: where to print; None for stdout.
    """
    on_paper, counts = counts is None, counts or {}
    console = console if console is not None else plain_console()
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    pipeline, rollout = config.pipeline, config.rollout
    trajectories = pipeline.steps * pipeline.prompts_per_step * pipeline.samples_per_prompt
    for name, value in (
        ("app", config.app),
        *(() if on_paper else _problems(config, counts)),
        *((f"rows of {name}", _rows(found)) for name, found in counts.items()),
        ("model", _model(config)),
        (
            "steps",
            f"{pipeline.steps:,} of {pipeline.prompts_per_step:,} prompts x {pipeline.samples_per_prompt:,} responses",
        ),
        ("trains on", f"{trajectories:,} responses of at most {rollout.max_tokens:,} tokens"),
        *(
            ("", line)
            for line in ([] if on_paper or config.model.path is None else stops_in_words(config, config.model.path))
        ),
        ("replicas", f"{rollout.replicas:,} with {_engine(config)}{_pools(config)}"),
        ("trainer", f"{config.trainer.backend}, {config.trainer.processes:,} process(es)"),
        ("checkpoints", checkpoints_in_words(config.checkpoint, pipeline.steps)),
        (
            "relays",
            f"{_relays(config)}, mode {config.relay.mode}, transport {config.relay.transport}, codec {config.relay.codec}",
        ),
        ("runs on", f"{found.machines}, on paper" if on_paper else _host(config)),
        ("policies", ", ".join(f"{axis} {getattr(pipeline, axis).name}" for axis in AXES)),
        ("faults", ", ".join(config.faults) or "none scripted"),
        ("directory", str(root)),
    ):
        table.add_row(name, value)
    console.print(table)
    show_footprint(found, console)
    console.print("Nothing was started or written. Without --dry-run this runs.")


def _problems(config: RunConfig, counts: Mapping[str, PromptCounts]) -> tuple[tuple[str, str], ...]:
    held_out = held_out_problems(config)
    return ("prompts", _prompts(config, counts)), ("held out", f"{held_out:,}" if held_out else "none")


def _engine(config: RunConfig) -> str:
    """The replicas' engine, how it serves an adapter, and how deep it sleeps."""
    engine = selected_engine(config)
    applies, level = applies_adapters(config, engine), sleep_level(config, engine)
    serves = ", which applies the adapter" if applies else ", into whose weights each adapter is merged"
    return (
        engine
        + (serves if config.trainer.adapter.rank else "")
        + (f"; asleep while lent, level {level}" if level else "")
    )


def _pools(config: RunConfig) -> str:
    pools = [f"{pool.count:,} {pool.name}{f' at {pool.site}' if pool.site else ''}" for pool in config.rollout.pools]
    return f": {', '.join(pools)}" if pools else ""


def _relays(config: RunConfig) -> str:
    return ", ".join(
        [f"{config.relay.count:,}", *(f"{count:,} at {site}" for site, count in config.relay.sites.items())]
    )


def _prompts(config: RunConfig, counts: Mapping[str, PromptCounts]) -> str:
    if config.task.generated:
        parts = config.task.parts(config.task.train_size)
        return " and ".join(f"{count:,} of the generated task {name}" for name, count in parts.items())
    if has_own_rows(config):
        return f"rows of the environment {config.environment.name}"
    sources = config.task.training
    total = sum(source.share for source in sources.values())
    lines = []
    for name, source in sources.items():
        share = f"{100 * source.share / total:.3g} % from " if len(sources) > 1 else ""
        verifier = source.verifier or config.task.verifier
        lines.append(f"{share}{counts[name].used:,} of {source.path}, verifier {verifier}")
    return "; ".join(lines)


def _rows(found: PromptCounts) -> str:
    lengths = "lengths not looked at: the model's context is not known yet"
    if found.most_tokens is not None:
        lengths = found.lengths or f"none longer than {found.most_tokens:,} tokens"
    return "; ".join(part for part in (f"{found.rows:,}", lengths, found.answers) if part)


def _model(config: RunConfig) -> str:
    return "a small Qwen3, warm-started first" if config.model.path is None else str(config.model.path)


def _host(config: RunConfig) -> str:
    if config.executor.name == "local":
        return "threads of one process"
    address = config.executor.ray_address
    return "Ray on this machine" if address is None else f"the Ray cluster at {address}"


_LEAST_SHARE = 0.002


def show_footprint(found: Footprint, console: Console) -> None:
    """Print all tables; the forecast only where the devices are known."""
    if found.standing.seats:
        console.print(_standing(found))
    console.print(_memory(found.places))
    console.print(_transfers(found))
    for note in (*found.notes, *found.cautions):
        console.print(Text(f"note: {note}", style="dim"))
    if found.machines.device is not None:
        _show_forecast(found, console)


def _standing(found: Footprint) -> Table:
    """Each device of each machine with who stands on it, and who stands on the machine without one."""
    table = _table("Who stands where", "machine", "device: who", "without a device")
    for node, (devices, beside) in enumerate(found.standing.by_machine(found.config, found.machines)):
        site = found.machines.at(node).site
        listed = ", ".join(f"{index}: {' + '.join(who) or 'free'}" for index, who in devices.items())
        table.add_row(f"{node}{f' ({site})' if site else ''}", listed, ", ".join(beside))
    return table


def _memory(places: Iterable[MemoryPlace]) -> Table:
    table = _table("Memory, by arithmetic", "where", "who", "what", "in all", "of")
    for place in places:
        first = True
        for owner, size in place.owners().items():
            if size < _LEAST_SHARE * place.peak:
                continue
            total, there = gigabytes(place.peak), "" if place.capacity is None else gigabytes(place.capacity)
            parts = _parts(part for part in place.parts if part.owner == owner)
            table.add_row(*((place.name,) if first else ("",)), owner, parts, *((total, there) if first else ("", "")))
            first = False
        table.add_section()
    return table


def _parts(parts: Iterable[OwnedBytes]) -> str:
    """Parts in words; those of one phase have its name behind them."""
    words: dict[tuple[str, str], float] = {}
    for part in parts:
        words[part.what, part.phase] = words.get((part.what, part.phase), 0.0) + part.size
    return ", ".join(
        f"{what} {gigabytes(size)}{f' ({phase})' if phase else ''}" for (what, phase), size in words.items() if size
    )


def _transfers(found: Footprint) -> Table:
    table = _table("A step moves at most", "what", "by", "bytes", "seconds", "the trainer", "rate from")
    for one in found.transfers:
        table.add_row(
            one.what,
            one.by,
            gigabytes(one.size) if one.size else "",
            "" if one.seconds is None else f"{one.seconds:,.2f}",
            "waits" if one.blocking else "goes on",
            "" if one.seconds is None else one.source,
        )
    return table


def _show_forecast(found: Footprint, console: Console) -> None:
    try:
        result = found.forecast()
    except TailraceError as error:
        console.print(Text(f"no forecast of a step: {error}", style="dim"))
        return
    busy = ", ".join(f"{role} {100 * share:.0f} %" for role, share in result.utilisation.items())
    console.print(
        f"Forecast of a step, simulated: {result.step_s:,.1f} s, {result.tokens_per_s:,.0f} trained tokens/s, "
        f"staleness {result.staleness_mean:.2f} mean, {result.staleness_max} at most; busy: {busy}"
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold", header_style="dim", vertical="top")
    return table
