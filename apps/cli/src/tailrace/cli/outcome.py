"""Prints a run's results: the gain in words, the main figures, and where to find more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.cli.panel import clock
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.prompt_reading import treated_rows
from tailrace.report.figures.accuracy import Accuracy, results_of_summary
from tailrace.report.figures.headline import gain
from tailrace.report.figures.prompts import PromptFates


def show_outcome(
    config: RunConfig, summary: dict[str, Any], directory: RunDirectory, console: Console | None = None
) -> None:
    """Print the results of a finished run."""
    console = console if console is not None else Console()
    found = results_of_summary(summary, config.task.held_out_size)
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    best = found.best_control
    table.add_row("accuracy before", _accuracy(found.before))
    table.add_row("accuracy after", Text(_accuracy(found.after), style="bold"))
    table.add_row("best control without RL", f"{_accuracy(best)} ({best.name})" if best is not None else "not measured")
    table.add_row("steps", f"{summary['steps']}, {summary['trained_trajectories']:,} trajectories")
    table.add_row("trained", f"{summary['tokens_per_s']:,.0f} tokens/s")
    bound = summary["staleness_bound"]
    guaranteed = f", bound {bound}" if bound is not None else ""
    table.add_row("staleness", f"{summary['staleness_mean']:.2f} mean, {summary['staleness_max']} max{guaranteed}")
    table.add_row("prompts", str(_prompts(summary["prompts"])))
    for treated in treated_rows(summary):
        table.add_row("", treated)
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
    table.add_row("wall time", clock(summary["wall_s"]))
    table.add_row("report", str(directory.report))
    console.print(Text(f"\n{gain(found)}\n"))
    console.print(table)


def _prompts(counted: Mapping[str, Any]) -> PromptFates:
    return PromptFates(counted["admitted"], counted["trained"], counted["filtered"], counted["failed"])


def _accuracy(measured: Accuracy | None) -> str:
    return "not measured" if measured is None else f"{100 * measured.accuracy:.1f} % ± {100 * measured.error:.1f}"
