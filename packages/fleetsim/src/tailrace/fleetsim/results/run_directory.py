"""The files of a simulation: a run directory like any other, with these further files

result.json        what was found
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.results.advice import advice
from tailrace.fleetsim.results.log import LogFile
from tailrace.fleetsim.results.outcome import rows
from tailrace.fleetsim.results.watch import SimulationProgress, Watched, watch_fleet
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.pipeline.run.figures.metrics import MetricsObserver
from tailrace.pipeline.run.figures.status import StatusObserver
from tailrace.pipeline.run.figures.summary import summarise
from tailrace.report.html.page import need_pages
from tailrace.report.record import record_of
from tailrace.report.run_page import write_report

FORMAT = 1
STATUS_EVERY_S = 0.5


def check_new(root: Path) -> None:
    """Whether a directory can be written to.

    Raises:
        RunDirectoryError: there is something there already. Nothing is overwritten.
    """
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        what = "files" if root.is_dir() else "a file"
        raise RunDirectoryError(f"{root}: found {what}, expected a new directory")


def plain(watched: Watched, said: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """The results as plain data, without the event log. What may be better is simulated for it, see `advice`."""
    result, detection = watched.result, watched.folds.detection.figures()
    return {
        "format": FORMAT,
        "name": watched.name,
        "seed": watched.seed,
        "result": {
            field.name: _plain(getattr(result, field.name))
            for field in dataclasses.fields(result)
            if field.name != "events"
        },
        "figures": watched.figures.to_json(),
        "warnings": advice(watched, said=said),
        **watched.folds.effective_time.figures().plain(),
        "task_restarts": watched.run.task_restarts,
        "lent_machines": watched.run.lent_machines,
        "false_detections": detection.false_detections,
        "late_detections": detection.late_detections,
        "simulated_hours": round(result.duration_s / 3600, 4),
        "wall_s": round(watched.wall_s, 3),
        "trajectories_per_s": round(result.trajectories / watched.wall_s, 1) if watched.wall_s else 0.0,
    }


def simulate_into(
    root: Path,
    config: RunConfig,
    *,
    name: str,
    keep_events: bool = True,
    listener: Callable[[SimulationProgress], None] | None = None,
    said: Callable[[str], None] = lambda _: None,
) -> tuple[Watched, dict[str, Path]]:
    """Simulate into a new run directory. Returns what was seen, and the files by name.

    An interruption leaves no files; a run that makes no progress leaves those written so far.

    Args:
        keep_events: write the event log, which `tailrace explain` and `tailrace report` read.
        listener: called with the progress.
        said: hears how far the further simulations are that advice takes.

    Raises:
        TailraceError: the configuration is wrong, or the run would hang.
    """
    need_pages()

    def write(watched: Watched, directory: RunDirectory) -> dict[str, Path]:
        return _write(watched, directory, keep_events=keep_events, said=said)

    return _simulate(root, config, name=name, keep_events=keep_events, listener=listener, write=write)


def log_into(root: Path, config: RunConfig) -> RunDirectory:
    """Simulate into a new run directory that has configuration, log, metrics and status, and no results: to look at it.

    Raises:
        TailraceError: the configuration is wrong, or the run would hang.
    """
    _simulate(root, config, name=config.app, keep_events=True, listener=None, write=lambda *_: {})
    return RunDirectory.open(root)


def _simulate(
    root: Path,
    config: RunConfig,
    *,
    name: str,
    keep_events: bool,
    listener: Callable[[SimulationProgress], None] | None,
    write: Callable[[Watched, RunDirectory], dict[str, Path]],
) -> tuple[Watched, dict[str, Path]]:
    """See `simulate_into`; `write` writes the results and names their files."""
    fleet = build_fleet(config, seed=config.seed)
    marked = {
        "steps": fleet.spec.steps,
        "warm_up": fleet.warm_up,
        "trainer_devices": fleet.trainer_gpus,
        "config": config.model_dump(mode="json"),
    }
    resolved = config if fleet.config is None else fleet.config
    parents = [path for path in root.parents if not path.exists()]
    directory = RunDirectory.create(root, resolved.model_dump(mode="json"), simulated=marked, beside=fleet.beside)
    status = StatusObserver(
        directory.status, app=config.app, run_dir=root, simulated=True, every_s=STATUS_EVERY_S,
        steps=fleet.batches,
    )  # fmt: skip
    metrics = MetricsObserver(directory.metrics)
    log = LogFile(directory.events) if keep_events else None
    try:
        status.phase("training")
        watched = watch_fleet(
            fleet, config, name=name, seed=config.seed, keep_events=False, listener=listener,
            observers=(metrics, status), log=log,
        )  # fmt: skip
        metrics.close()
        if log is not None:
            log.close()
        written = write(watched, directory)
        status.settle()
        shown, figures = status.status, watched.figures  # what was measured, behind the warm-up
        shown.trained_tokens_per_s = figures.tokens_per_s
        shown.staleness_mean, shown.staleness_max = figures.staleness_mean, figures.staleness_max
        failure = watched.result.failure
        status.phase("done" if failure is None else "failed", failure or "")
    except KeyboardInterrupt:
        shutil.rmtree(root, ignore_errors=True)
        with suppress(OSError):
            for path in parents:
                path.rmdir()
        raise
    except Exception as error:
        status.phase("failed", str(error))
        raise
    finally:
        directory.unlock()
    return watched, written


def again(root: Path) -> RunConfig | None:
    """The configuration that a simulation was made with; None if the directory is of a real run.

    Raises:
        RunDirectoryError, ConfigError: it is neither, or damaged.
    """
    directory = RunDirectory.open(root)
    found = directory.simulated
    if found is None:
        return None
    if not isinstance(found.get("config"), dict):
        raise RunDirectoryError(f"{directory.config}: found a simulation without 'config', expected one to make again")
    return validate([(str(directory.config), found["config"])])


def _write(
    watched: Watched, directory: RunDirectory, *, keep_events: bool, said: Callable[[str], None]
) -> dict[str, Path]:
    root, folds = directory.root, watched.folds
    found = plain(watched, said)
    written = {"config": directory.config, "result": root / "result.json"}
    if keep_events:
        written["events"] = directory.events
        with directory.events.open("rb") as file:
            found["events_sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    write_json(written["result"], found)
    published = [version.published_s for version in folds.versions.ordered.values() if version.published_s is not None]
    batches = folds.batches.trained
    training_s = batches[-1].ended_s - published[0] if batches and published else 0.0
    summary = summarise(
        watched.config,
        watched.run,
        (),
        audit=None,
        lengths=[length for batch in batches for length in batch.lengths],
        wall_s=watched.result.duration_s,
        training_s=training_s,
        extra={
            **(watched.folds.rounds.plain() if watched.folds.rounds.used else {}),
            **watched.folds.came_and_went.plain(),
            **watched.folds.faults.figures(watched.fleet.faults).plain(),
            "tokens_per_s": watched.figures.tokens_per_s,
            "staleness_mean": round(watched.figures.staleness_mean, 4),
            "staleness_max": watched.figures.staleness_max,
            "simulated_in_s": round(watched.wall_s, 2),
            "warnings": found["warnings"],
            "figures": rows(watched),
        },
    )
    write_json(directory.summary, summary)
    written["report"] = write_report(directory, record_of(directory, watched.folds))
    return written


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [dataclasses.asdict(item) if dataclasses.is_dataclass(item) else item for item in value]  # type: ignore[arg-type]
    return value
