"""The command about the lengths of responses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.app import app


@app.command("rank")
def rank_command(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="A run's directory, or JSONL rows with prompt and lengths and, if known, truncated, family, version.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The ranker's directory, to be written.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures as JSON.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(metavar="NAME", help="The ranker's method; auto takes the one that finds most of the longest."),
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of what is held out and of training.")] = 0,
    budget_s: Annotated[float, typer.Option(help="Seconds of training, of all methods together.")] = 300.0,
    policy: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The model that generates the responses, for the method hidden.")
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A causal language model that sft and encoder begin with, not from scratch."),
    ] = None,
) -> None:
    """Learn which prompts have the longest responses, and show how well each method finds them on prompts held out."""
    from tailrace.cli.rank import RankOptions, rank

    rank(RankOptions(data, out, json_file, method, seed, budget_s, policy, init))
