"""The application that commands are added to."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class _Commands(TyperGroup):
    """Lets Ctrl-C come out as `KeyboardInterrupt`: the library's own `main` ends with status 130 and without a word."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,  # noqa: ARG002 - the signature is the library's
        standalone_mode: bool = True,  # noqa: ARG002
        windows_expand_args: bool = True,  # noqa: ARG002
        **extra: Any,
    ) -> Any:
        """Parse a command line and invoke its command. Returns what that returned, or the status that it ended with.

        Args:
            args: the words behind the program's name; None for those of this process.
            prog_name: the program's name.
            complete_var, standalone_mode, windows_expand_args: not used.
            extra: settings of the context.
        """
        try:
            with self.make_context(prog_name, list(sys.argv[1:] if args is None else args), **extra) as context:
                return self.invoke(context)
        except typer.Exit as ended:
            return ended.exit_code


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
