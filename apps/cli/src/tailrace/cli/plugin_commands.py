"""Commands about plugins of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.app import app


@app.command("new-plugin")
def new_plugin_command(
    axis: Annotated[
        str,
        typer.Argument(
            metavar="AXIS",
            help="admission, batching, routing, sync, relocation, training, provisioning or recovery.",
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The plugin's name, such as shortest-first.")],
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="A new folder. Default: one of the plugin's name.")
    ] = None,
) -> None:
    """Write a package with a policy of your own: it installs, passes its axis's contract suite and can be fuzzed."""
    from tailrace.cli.new_plugin import new_plugin

    new_plugin(axis, name, directory)
