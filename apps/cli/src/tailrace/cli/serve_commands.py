"""The command that serves a model's samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.app import app


@app.command("serve")
def serve_command(
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A Hugging Face model directory; its weights are version 0.")
    ],
    host: Annotated[str, typer.Option(help="The address to listen at; this machine alone reaches the default.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 0,
    replicas: Annotated[int, typer.Option(help="Engines, each in a process of its own.", min=1)] = 2,
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="vllm, transformers or a plugin; auto: the fastest here.")
    ] = ("auto"),
    ranker: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A ranker from tailrace rank: prompts start longest first.", show_default=False
        ),
    ] = None,
    relay: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A relay from which clients may have weights taken; repeatable.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve a model's samples over HTTP, each as it ends, while its weights change; prints url and token_file when ready."""
    from tailrace.cli.serve import ServeOptions, serve_model

    serve_model(ServeOptions(target, host, port, replicas, engine, ranker, tuple(relay or ())))
