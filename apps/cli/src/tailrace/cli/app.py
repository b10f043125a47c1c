"""The application that commands are added to."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class _Commands(TyperGroup):
    """Lets Ctrl-C come out as `typer.Abort`: the library alone ends without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Invoke the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort from error


app = typer.Typer(
    name="tailrace",
    help="Reinforcement-learning post-training of language models, asynchronous and fault-tolerant.",
    epilog="Start with: tailrace run laminar",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tailrace {version('tailrace')}")
        raise typer.Exit


@app.callback(cls=_Commands)
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    pass
