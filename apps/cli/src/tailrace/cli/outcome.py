"""Prints a run's results: the gain in words, the main figures, and where to find more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.cli.panel import clock
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.prompt_reading import treated_rows
from tailrace.pipeline.run.results import Measured, Quantity, Results
from tailrace.report.figures.headline import UNKNOWN_ACCURACY, gain, reward_alone
from tailrace.report.figures.held_out import with_error
from tailrace.report.figures.prompts import PromptFates, failures
from tailrace.report.words import changes_in_words


def show_outcome(summary: dict[str, Any], directory: RunDirectory, console: Console | None = None) -> None:
    """Print the results of a finished run."""
    console = console if console is not None else Console()
    found = Results.from_plain(summary["evaluation"])
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    best = found.best_control
    quantities = found.quantities or (Quantity.ACCURACY,)
    if Quantity.ACCURACY not in quantities:
        table.add_row("accuracy", UNKNOWN_ACCURACY)
    for quantity in quantities:
        table.add_row(f"{quantity} before", _measured(quantity, found.before))
        table.add_row(f"{quantity} after", Text(_measured(quantity, found.after), style="bold"))
    name = "best control without RL"
    table.add_row(name, f"{_measured(quantities[0], best)} ({best.name})" if best is not None else "not measured")
    table.add_row("steps", f"{summary['steps']}, {summary['trained_trajectories']:,} trajectories")
    table.add_row("trained", f"{summary['tokens_per_s']:,.0f} tokens/s")
    bound = summary["staleness_bound"]
    guaranteed = f", bound {bound}" if bound is not None else ""
    table.add_row("staleness", f"{summary['staleness_mean']:.2f} mean, {summary['staleness_max']} max{guaranteed}")
    table.add_row("prompts", str(_prompts(summary["prompts"])))
    for line in (*treated_rows(summary), *failures(summary["prompts"])):
        table.add_row("", line)
    if summary["partial_rollout"]:
        pulls, migrated = summary["interrupting_pulls"], summary["migrated_trajectories"]
        moved = f", {summary['repacks']} repacks" if summary["repacks"] else ""
        table.add_row("interruptions", f"{pulls:,} pulls interrupted work, {migrated:,} trajectories migrated{moved}")
        table.add_row(
            "resumed on newer", f"{summary['resumed_on_newer']:,} times a trajectory continued under newer weights"
        )
        table.add_row("restarts", str(summary["replica_restarts"]))
    else:
        table.add_row("repacks, restarts", f"{summary['repacks']}, {summary['replica_restarts']}")
    table.add_row("lost trajectories", str(summary["lost_trajectories"]))
    if summary["contradictions"]:
        table.add_row("contradictions", Text(f"{summary['contradictions']} snapshots", style="red"))
    for change in summary.get("changes", ()):
        table.add_row("changed on resume", changes_in_words(change))
    table.add_row("wall time", clock(summary["wall_s"]))
    table.add_row("report", str(directory.report))
    console.print(Text(f"\n{gain(found)}\n"))
    warning = reward_alone(found)
    if warning is not None:
        console.print(Text(f"{warning}\n", style="yellow"))
    console.print(table)


def _prompts(counted: Mapping[str, Any]) -> PromptFates:
    return PromptFates(counted["admitted"], counted["trained"], counted["filtered"], counted["failed_because"])


def _measured(quantity: Quantity, measured: Measured | None) -> str:
    return "not measured" if measured is None else with_error(quantity, measured.estimate(quantity))
