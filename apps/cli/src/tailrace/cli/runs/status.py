"""``tailrace status``: what a run is doing, read from its directory by another process."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from tailrace.cli.console import plain_console
from tailrace.cli.json_text import json_text
from tailrace.cli.runs.display import clock, incident_line, panel
from tailrace.contracts import shown
from tailrace.pipeline.errors import RunDirectoryError, resume_command
from tailrace.pipeline.run.directory import RunDirectory, read_json
from tailrace.pipeline.run.figures.status import RunStatus

WATCH_S = 1.0
OLD_S = 30.0
LAST_INCIDENTS = 5
ENDED = {"failed": "failed", "interrupted": "was interrupted"}


def status(root: Path, *, watch: bool = False, as_json: bool = False) -> None:
    """Show the status of a run.

    Raises:
        RunDirectoryError: the run does not exist or is damaged.
    """
    directory = RunDirectory.open(root)
    found, alive = current(directory)
    if as_json:
        print(json_text({**dataclasses.asdict(found), "alive": alive, "age_s": round(_age_s(found), 3)}))
        return
    console = plain_console()
    if not watch:
        console.print(view(found, alive=alive))
        return
    with Live(view(found, alive=alive), console=console, auto_refresh=False) as live:
        while alive:
            time.sleep(WATCH_S)
            found, alive = current(directory)
            live.update(view(found, alive=alive), refresh=True)


def current(directory: RunDirectory) -> tuple[RunStatus, bool]:
    """The status of a run and whether its process lives. If it did not live to the run's end, the log tells, as in the report.

    Raises:
        RunDirectoryError, ConfigError: a file is missing or damaged.
    """
    alive = directory.running()
    found = read_status(directory)
    if alive or (found.phase == "done" and found.over):  # the driver took in the last instant and ended
        return found, alive
    if not directory.events.exists():
        found.rest()
        return found, False
    from tailrace.report.final_status import standing
    from tailrace.report.record import read_record

    return standing(read_record(directory), found), False


def read_status(directory: RunDirectory) -> RunStatus:
    """The status that the run wrote last, of the directory where it is now; keys of another version are left out.

    Raises:
        RunDirectoryError: the file is missing or damaged.
    """
    if not directory.status.exists():
        raise RunDirectoryError(f"{directory.status}: no such file; the run has not written its status yet")
    content: dict[str, Any] = read_json(directory.status)
    known = {field.name for field in dataclasses.fields(RunStatus)}
    return RunStatus(
        **{key: value for key, value in content.items() if key in known} | {"run_dir": str(directory.root)}
    )


def view(found: RunStatus, *, alive: bool) -> RenderableType:
    """The display, and whether the run's process lives. A terminal carries out none of its texts: the run may be anybody's."""
    found = RunStatus(**_plain(dataclasses.asdict(found)))
    age_s = _age_s(found)
    wall_s = found.wall_s + (age_s if alive and not found.simulated else 0.0)
    last = [Text(incident_line(incident), style="yellow") for incident in found.incidents[-LAST_INCIDENTS:]]
    return Group(panel(found, wall_s=wall_s), *([Text(), *last] if last else []), Text(), _life(found, alive, age_s))


def _age_s(found: RunStatus) -> float:
    """Seconds since it was written; 0 where that was on a machine whose clock is ahead."""
    return max(0.0, time.time() - found.updated_at)


def _plain(value: Any) -> Any:
    """Plain data whose texts do nothing to a terminal."""
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return shown(value) if isinstance(value, str) else value


def _life(found: RunStatus, alive: bool, age_s: float) -> Text:
    if alive:
        text = f"process {found.pid} runs; this was written {clock(age_s)} ago"
        return Text(text, style="yellow" if age_s > OLD_S else "dim")
    run = "simulated run" if found.simulated else "run"
    if found.phase == "done":
        return Text(f"the {run} is complete; its report is {Path(found.run_dir) / 'report.html'}", style="dim")
    ended = (
        f"the {run} {ENDED[found.phase]}"
        if found.phase in ENDED
        else f"process {found.pid} is gone since {clock(age_s)}"
    )
    again = "" if found.simulated else f"; go on with: {resume_command(found.run_dir)}"
    return Text(f"{ended}{again}", style="red")
