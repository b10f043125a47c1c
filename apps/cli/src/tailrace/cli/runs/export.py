"""``tailrace export``: a run's model as a Hugging Face directory, or the trajectories that it was trained on as Parquet."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

import typer

from tailrace.cli.errors import CommandError
from tailrace.cli.runs.clean import size
from tailrace.pipeline.errors import RunDirectoryError, RunWriteError
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.model_export import export as export_run

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


def export_trajectories(run: Path, out: Path, *, as_json: bool = False) -> None:
    """Write the trajectories that a run was trained on as Parquet, and print what was written.

    Of a run that is under way they are those that have left the store: of all versions that a restart would not undo.

    Args:
        run: the run's directory.
        out: a file that is not there yet, whose name ends with ``.parquet``.
        as_json: print one JSON object.

    Raises:
        CommandError: the file is there, or has another name.
        RunDirectoryError: there is no such run, or it has archived nothing yet.
        RunWriteError: the file cannot be written. Nothing is left of it.
        StoreFormatError: the archive is damaged. Nothing is left of what was written.
    """
    from tailrace.trajstore.archive import write_parquet

    directory = RunDirectory.open(run)
    if out.suffix != ".parquet" or out.exists():
        found = "one that is there already" if out.exists() else "another name"
        raise CommandError(f"--out {out}: found {found}, expected a new file whose name ends with .parquet")
    if not directory.trained.exists():
        raise RunDirectoryError(f"{directory.trained}: no such file; no version of the run was settled yet")
    lines = _Lines()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        rows = write_parquet(
            directory.trained,
            out,
            lambda done: lines.say(f"wrote {done:,} trajectories"),
            growing=not directory.summary.exists(),
        )
    except OSError as error:
        if error.errno is None:
            raise
        raise RunWriteError(error.errno, error.strerror, str(out)) from error
    nbytes = out.stat().st_size
    if as_json:
        typer.echo(json.dumps({"file": str(out), "run": str(run), "trajectories": rows, "bytes": nbytes}))
    else:
        typer.echo(f"{out}: {rows:,} trajectories, {size(nbytes)}")


class _Lines:
    """Prints a line every few seconds. On stderr: stdout has the result."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        self.say(f"wrote {size(done)} of {size(total)}")

    def say(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last_s >= _LINE_EVERY_S:
            self._last_s = now
            print(text, file=sys.stderr, flush=True)
