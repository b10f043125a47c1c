"""``tailrace clean``: lists what a crash left on this machine, asks, and removes it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from tailrace.cli.exit_status import FAILED
from tailrace.pipeline.run.leftovers import leftovers


def clean(runs: Sequence[Path], *, yes: bool = False) -> int:
    """List what nothing alive uses and remove it once the user agrees. Returns the exit status.

    Args:
        runs: run directories whose half-written files are removed too.
        yes: do not ask.

    Raises:
        RunDirectoryError: one of them is no run directory, or its run is under way.
    """
    found = leftovers(runs)
    if not found:
        typer.echo("Nothing is left: no shared memory, no Ray cluster, no service's directory, no half-written file.")
        return 0
    for each in found:
        typer.echo(f"{size(each.nbytes):>10}  {each.what}")
    total = size(sum(each.nbytes for each in found))
    if not yes:
        if not sys.stdin.isatty():
            typer.echo(f"{total} that nothing alive uses. Nothing was removed; --yes removes it.")
            return 0
        if not typer.confirm(f"Remove {total} that nothing alive uses?"):
            return 0
    stay = [each.what for each in found if not each.remove()]
    typer.echo(f"Removed {len(found) - len(stay)} of {len(found)}.")
    for what in stay:
        typer.echo(f"stays, since it is in use now or may not be removed: {what}")
    return FAILED if stay else 0


def size(nbytes: int) -> str:
    """A size in bytes as text."""
    value, units = float(nbytes), ("B", "kB", "MB", "GB")
    for unit in units:
        if value < 1000 or unit == units[-1]:
            break
        value /= 1000
    return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
