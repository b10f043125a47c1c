"""``tailrace export``: a run's model as a Hugging Face directory."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

import typer

from tailrace.cli.runs.clean import size
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.export import export as export_run

_LINE_EVERY_S = 2.0


def export(run: Path, out: Path, *, version: int | None = None, merge: bool = False, as_json: bool = False) -> None:
    """Write a run's model, and print what was written.

    Args:
        run: the run's directory.
        out: a directory that is new or empty.
        version: which checkpoint; None: the newest.
        merge: whether an adapter is merged into its base; otherwise it is written as PEFT has it.
        as_json: print one JSON object.

    Raises:
        RunDirectoryError: there is no such run or checkpoint, `out` is not empty, or there is no room.
        CheckpointError: the checkpoint is damaged.
    """
    found = export_run(RunDirectory.open(run), out, version=version, merge=merge, progress=_Lines())
    if as_json:
        about = dataclasses.asdict(found) | {"directory": str(found.directory), "run": str(found.run)}
        typer.echo(json.dumps(about))
        return
    for name, nbytes in found.files.items():
        typer.echo(f"{size(nbytes):>10}  {name}")
    what = " of an adapter; --merge writes the whole model" if found.adapter else ""
    typer.echo(f"{found.directory}: version {found.version}, {found.parameters:,} parameters{what}")


class _Lines:
    """Prints a line every few seconds. On stderr: stdout has the result."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last_s >= _LINE_EVERY_S:
            self._last_s = now
            print(f"wrote {size(done)} of {size(total)}", file=sys.stderr, flush=True)
