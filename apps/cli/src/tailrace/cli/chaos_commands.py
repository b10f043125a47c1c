"""The command that breaks runs on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.app import app


@app.command("chaos")
def chaos_command(
    target: Annotated[str, typer.Argument(metavar="APP", help="The name of an app (its quick start) or a TOML file.")],
    kills: Annotated[int, typer.Option("--kills", metavar="N", min=1, help="Go on until so many faults have struck.")],
    mtbf: Annotated[
        float, typer.Option("--mtbf", metavar="SECONDS", min=0.001, help="Mean seconds between two faults.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The campaign's directory; one that was cut goes on.")
    ],
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the faults and of the first run.")] = 0,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="The figures. Default: DIR/chaos.json.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the runs. Repeatable.")
    ] = None,
    executor: Annotated[
        str | None, typer.Option("--executor", metavar="ray|local", help="Processes on Ray, or threads of each driver.")
    ] = None,
    roles: Annotated[
        list[str] | None, typer.Option("--role", metavar="ROLE", help="Strike only this one. Repeatable. Default: all.")
    ] = None,
    still: Annotated[
        float,
        typer.Option("--still", metavar="SECONDS", min=1.0, help="Without progress for so long, a run counts as hung."),
    ] = 900.0,
    compare: Annotated[
        bool, typer.Option("--compare", help="Make each run without faults too, and compare held-out accuracy.")
    ] = False,
) -> None:
    """Run an app again and again, kill and hang all its roles and its driver at random, and check that nothing is lost."""
    from tailrace.cli.chaos import ChaosOptions, run

    raise typer.Exit(
        run(
            ChaosOptions(
                target=target,
                out=out,
                kills=kills,
                mtbf_s=mtbf,
                seed=seed,
                settings=tuple(settings or ()),
                executor=executor,
                still_s=still,
                compare=compare,
                roles=tuple(roles or ()),
                json=json,
            )
        )
    )
