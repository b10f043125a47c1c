"""What a simulation leaves behind.

config.json        the resolved configuration and the seed
result.json        what was found
events.jsonl       the event log, one line for each instant; compressed if it is long
simulation.html    all of it to look at
timeline.svg       who did what, to print
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
from pathlib import Path
from typing import Any

from tailrace.fleetsim.picture.advice import advice
from tailrace.fleetsim.picture.figures import simulated
from tailrace.fleetsim.picture.page import simulation_page
from tailrace.fleetsim.picture.scene import scene
from tailrace.fleetsim.picture.timeline_svg import timeline_svg
from tailrace.fleetsim.picture.watch import Watched
from tailrace.fleetsim.result import EventLog
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import read_json, write_json
from tailrace.pipeline.run.reporting.page import write_page

FORMAT = 1
CONFIG = "config.json"
MANY_EVENTS = 50_000


def check_new(root: Path) -> None:
    """Whether a directory can be written to.

    Raises:
        RunDirectoryError: there is something there already. Nothing is overwritten.
    """
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        what = "files" if root.is_dir() else "a file"
        raise RunDirectoryError(f"{root}: found {what}, expected a new directory")


def plain(watched: Watched) -> dict[str, Any]:
    """What was found, as plain data, without the event log."""
    result = watched.result
    figures = simulated(watched)
    return {
        "format": FORMAT,
        "name": watched.name,
        "seed": watched.seed,
        "result": {
            field.name: _plain(getattr(result, field.name))
            for field in dataclasses.fields(result)
            if field.name != "events"
        },
        "figures": figures.to_json(),
        "warnings": advice(watched, figures),
        "wall_s": round(watched.wall_s, 3),
        "trajectories_per_s": round(result.trajectories / watched.wall_s, 1) if watched.wall_s else 0.0,
    }


def write(watched: Watched, root: Path) -> dict[str, Path]:
    """Write all files; returns them by name.

    Raises:
        RunDirectoryError: the directory is not new.
    """
    check_new(root)
    root.mkdir(parents=True, exist_ok=True)
    config = {"seed": watched.seed, "config": watched.config.model_dump(mode="json")}
    write_json(root / CONFIG, {"format": FORMAT, "name": watched.name, "simulation": config})
    found = plain(watched)
    written = {"config": root / CONFIG, "result": root / "result.json"}
    if watched.result.events.instants:
        many = watched.result.handled_events > MANY_EVENTS
        written["events"] = root / ("events.jsonl.gz" if many else "events.jsonl")
        found["events_sha256"] = _write_events(watched.result.events, written["events"], compressed=many)
    write_json(written["result"], found)
    written["timeline"] = root / "timeline.svg"
    written["timeline"].write_text(timeline_svg([scene(watched)], f"{watched.name}: who did what"), encoding="utf-8")
    written["page"] = write_page(root / "simulation.html", simulation_page(watched))
    return written


def read_config(root: Path) -> tuple[str, int, dict[str, Any]] | None:
    """Name, seed and resolved configuration of a simulation; None if the directory is of something else.

    Raises:
        RunDirectoryError: the file is missing or damaged.
    """
    content = read_json(root / CONFIG)
    found = content.get("simulation")
    if not isinstance(found, dict):
        return None
    try:
        return str(content["name"]), int(found["seed"]), dict(found["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunDirectoryError(f"{root / CONFIG}: found no name, seed and config, expected a simulation's") from error


def _write_events(events: EventLog, path: Path, *, compressed: bool) -> str:
    """Returns the SHA-256 of the log before compression."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        # no name and no time in the header: the same log gives the same file
        into = gzip.GzipFile("", "wb", 6, file, mtime=0) if compressed else file
        for line in events.lines():
            data = line.encode()
            digest.update(data)
            into.write(data)
        if compressed:
            into.close()
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [dataclasses.asdict(item) if dataclasses.is_dataclass(item) else item for item in value]  # type: ignore[arg-type]
    return value
