"""Commands about the sandbox in which the programs of code tasks run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.app import app

sandbox = typer.Typer(help="See whether programs can be run safely here, and run one.", no_args_is_help=True)
app.add_typer(sandbox, name="sandbox")

Name = Annotated[
    str,
    typer.Option(
        "--sandbox", metavar="NAME", help="auto, sandlock, bubblewrap, sandbox-fusion:URL, or another registered one."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@sandbox.command("check")
def check_command(name: Name = "auto", as_json: AsJson = False) -> int:
    """Run a program that tries to get out of each backend. Exit status 2 if none works."""
    from tailrace.cli.sandbox import check

    return check(name, as_json=as_json)


@sandbox.command("run")
def run_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python program.")],
    name: Name = "auto",
    cpu_s: Annotated[float, typer.Option(help="CPU seconds, of all its processes.")] = 10.0,
    wall_s: Annotated[float, typer.Option(help="Seconds.")] = 30.0,
    memory_mib: Annotated[int, typer.Option(help="MiB of memory, of all its processes.")] = 256,
    as_json: AsJson = False,
) -> int:
    """Run a Python program in the sandbox and say how it ended. Exit status 1 only if the sandbox failed."""
    from tailrace.cli.sandbox import run

    return run(file, name, cpu_s=cpu_s, wall_s=wall_s, memory_mib=memory_mib, as_json=as_json)
