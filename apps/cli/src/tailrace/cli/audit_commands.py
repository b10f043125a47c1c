"""The command that trains a run's recorded batches again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.app import app


@app.command("audit")
def audit_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run that has finished.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write what was found as JSON.")
    ] = None,
) -> int:
    """Train a run's recorded batches again without faults, and compare the weights bit for bit; status 1 if they differ."""
    from tailrace.pipeline.run.audit import audit
    from tailrace.pipeline.run.directory import RunDirectory

    found = audit(RunDirectory.open(run), lambda done, of: typer.echo(f"trained on {done} of {of} batches", err=True))
    typer.echo(f"every trajectory was trained on once   {'yes' if found.trained_once else 'NO'}")
    typer.echo(f"the weights are the same bits          {'yes' if found.weights_equal else 'NO'}")
    typer.echo(f"the run's        {found.weights_sha256}")
    typer.echo(f"trained again    {found.audited_sha256}")
    if json_file is not None:
        json_file.write_text(json.dumps(dataclasses.asdict(found), indent=1) + "\n")
    return 0 if found.trained_once and found.weights_equal else 1
