"""``tailrace run --dry-run``: checks everything that can be checked and prints what a run would do, without starting it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tailrace.cli.runs.footprint_tables import show_footprint
from tailrace.controller.spec import AXES
from tailrace.fleetsim.footprint import Footprint
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.abilities import applies_adapters, sleep_level
from tailrace.pipeline.run.checkpoint_plan import checkpoints_in_words
from tailrace.pipeline.run.engine import selected_engine
from tailrace.pipeline.run.environments import has_own_rows, held_out_problems
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
    console = console if console is not None else Console()
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
