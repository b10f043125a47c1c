"""``tailrace fit-cost``: the cost model of decoding that fits a run, as a table of a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap

import typer

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.directory import RunDirectory


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
    config = directory.configuration()
    stages = stage_figures(read_log(directory.events), config.trainer.cells)
    if stages.train_s is not None and stages.lengths:
        typer.echo('# What provisioning "balanced" may begin with, from the last steps and responses:')
        for line in rows(config, tuple(coefficients.values()), stages.kv_tokens, stages.train_s, stages.lengths):
            typer.echo(f"# {line}")


def rows(
    config: RunConfig, coefficients: Sequence[float], kv_tokens: int, train_s: float, lengths: Sequence[int]
) -> Iterator[str]:
    """Lines of TOML: a row for the replicas and one for the trainer, where all replicas are alike, and the lengths.

    Args:
        config: of the run that was measured.
        coefficients: k1 to k4 of a decoding step, with the KV cache counted in tokens.
        kv_tokens: tokens that the KV cache of a replica holds; 0 if that is not known.
        train_s: seconds of training on a batch.
        lengths: response tokens.
    """
    yield f"train_s = {train_s:.4g}"
    yield f"lengths = {list(lengths)}"
    spec = build_spec(config, recorded=True)
    if len(spec.pools) > 1:
        return
    spans = spec.pools[0].tp if spec.pools else spec.tp
    found = ", ".join(f"{value:.4g}" for value in coefficients)
    yield f"replica_costs = [[{spans}, {kv_tokens}, {found}]]"
    yield f"training_times = [[{config.trainer.processes}, {train_s:.4g}]]"
