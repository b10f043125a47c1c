"""Prints from a run's log the history of a trajectory, or the fitted cost model of decoding."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

import typer

from tailrace.cli.simulations.measured_rows import rows
from tailrace.contracts import shown
from tailrace.pipeline.run.directory import RunDirectory


def explain(run: Path, trajectory: str) -> None:
    """Print a trajectory's history.

    Raises:
        RunDirectoryError: the run, or the trajectory in it, does not exist.
    """
    from tailrace.report.explain import explain as tell

    for line in tell(RunDirectory.open(run), trajectory):
        typer.echo(f"{line.at_s:9.2f} s  version {line.version:<4d} {shown(line.text)}")


def fit_cost(run: Path) -> None:
    """Print the cost model that fits a run, as a table of a configuration, below whether it may be used.

    Raises:
        RunDirectoryError: the run does not exist or has too few snapshots.
    """
    from tailrace.pipeline.run.cost_model_fit import fit_cost_model
    from tailrace.pipeline.run.eventlog import read_log
    from tailrace.pipeline.run.figures.stages import stage_figures

    directory = RunDirectory.open(run)
    fit = fit_cost_model(directory)
    least, most = fit.running
    if fit.doubts:
        typer.echo("# Verdict: do not use this fit.")
        for doubt in fit.doubts:
            for line in wrap(doubt, 76, initial_indent="# - ", subsequent_indent="#   "):
                typer.echo(line)
    else:
        typer.echo(f"# Verdict: may be used, for {least} to {most} trajectories at once on a replica.")
    left_out = "" if fit.held_out is None else f", {fit.held_out:.0%} on what was left out of the fit"
    typer.echo(f"# {fit.samples} snapshots; step times are off by {fit.error:.0%} in the median{left_out}")
    typer.echo("[rollout.cost_model]")
    coefficients = {name: getattr(fit.model, name) for name in ("k1", "k2", "k3", "k4")}
    for name, value in coefficients.items():
        typer.echo(f"{name} = {value:.4g}")
    stages = stage_figures(read_log(directory.events))
    if stages.train_s is not None and stages.lengths:
        typer.echo('# What provisioning "balanced" may begin with, from the last steps and responses:')
        config, measured = directory.configuration(), (tuple(coefficients.values()), stages.kv_tokens)
        for line in rows(config, *measured, stages.train_s, stages.lengths):
            typer.echo(f"# {line}")
