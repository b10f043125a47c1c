"""``tailrace run``: starts or resumes a run, shows it, and prints its results."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from tailrace.cli.errors import WRONG, CommandError
from tailrace.cli.runs.controller_process import (
    ATTACH,
    LAUNCH,
    RESUME,
    ControllerOrder,
    ControllerProcess,
    LeftController,
)
from tailrace.cli.runs.controller_watcher import unwatched, watch
from tailrace.cli.runs.host_resources import store_note
from tailrace.cli.runs.preflight import check, check_on_paper, footprint_here
from tailrace.contracts import shown
from tailrace.fleetsim.footprint import read_machines
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.target import configuration, written_fault
from tailrace.pipeline.errors import Gathered
from tailrace.pipeline.run.directory import RunDirectory, check_new
from tailrace.pipeline.run.engine_abilities import start_notes
from tailrace.pipeline.run.launching.attaching import check_left
from tailrace.pipeline.run.prompts.reading import sized
from tailrace.rollout.vllm_process import correct_wheel_tag

_END_S = 5.0
"""Seconds for a controller whose watcher was killed to end, where the run does not go on without one."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The command line of ``tailrace run``."""

    target: str | None = None
    settings: tuple[str, ...] = ()
    run_dir: Path | None = None
    seed: int | None = None
    executor: str | None = None
    ray_address: str | None = None
    faults: tuple[tuple[str, str], ...] = ()
    mtbf_s: float | None = None
    fault_seed: int | None = None
    resume: Path | None = None
    plain: bool = False
    dry_run: bool = False
    devices: str | None = None


def run(options: RunOptions) -> int:
    """Run to the end. Returns the exit status.

    Raises:
        TailraceError: the command or the configuration is wrong; no file was written.
    """
    if (options.target is None) == (options.resume is None):
        raise CommandError("expected either a TARGET (an app's name or a TOML file) or --resume RUN")
    if options.devices is not None and not options.dry_run:
        raise CommandError(f"found --devices {options.devices} without --dry-run, expected both: nothing runs on paper")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # bars for loading a model, in the middle of the display
    correct_wheel_tag()  # before anyone calls `uv run` a second time
    return _resume(options) if options.resume is not None else _start(options)


def attach(root: Path, *, plain: bool) -> int:
    """Take the place of a run's controller that died. Returns the exit status.

    Raises:
        RunDirectoryError: there is nothing to attach to.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    correct_wheel_tag()
    directory = RunDirectory.open(root)
    check_left(directory)
    with _controller() as process:
        return watch(directory, process, ControllerOrder(ATTACH, str(root)), plain=plain)


def _start(options: RunOptions) -> int:
    assert options.target is not None
    config = configuration(
        options.target,
        settings=options.settings,
        seed=options.seed,
        executor=options.executor,
        ray_address=options.ray_address,
        faults=options.faults,
        mtbf_s=options.mtbf_s,
        fault_seed=options.fault_seed,
    )
    root = options.run_dir or Path("runs") / f"{config.app}-{time.strftime('%Y%m%d-%H%M%S')}"
    if options.dry_run:
        from tailrace.cli.runs.dry_run import show_plan

        if options.devices is not None:
            machines = read_machines(options.devices)
            show_plan(config, root, None, check_on_paper(config, machines, f"{options.target}: "))
            return 0
        config, counts = _checked(config, options, root)
        show_plan(config, root, counts, footprint_here(config, root))
        return 0
    with _controller() as process:
        config, _ = _checked(config, options, root)
        directory = RunDirectory.create(root, config.model_dump(mode="json"))
        status = watch(
            directory, process, ControllerOrder(LAUNCH, str(root), faults=_scripted(config)), plain=options.plain
        )
    if status == WRONG and not directory.events.exists():  # nothing ran: a corrected command can use the directory
        shutil.rmtree(directory.root)
    return status


def _scripted(config: RunConfig) -> dict[str, Any]:
    """The faults of a run, by their keys of a configuration."""
    return {"faults": config.faults, "mtbf_s": config.mtbf_s, "fault_seed": config.fault_seed}


def _checked(config: RunConfig, options: RunOptions, root: Path) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration once everything about it was checked, and what the prompt files hold."""
    gathered = Gathered()
    found = None
    with gathered.check():
        found = check(config, f"{options.target}: ", root=root)
    with gathered.check():
        check_new(RunDirectory(root))
    gathered.done()
    about_store = store_note(root)
    notes = [*(found.notes if found is not None else ()), *([about_store] if about_store else []), *start_notes(config)]
    for note in notes:
        typer.echo(f"note: {shown(note)}", err=True)
    return sized(config, found), found.counts if found is not None else {}


@contextmanager
def _controller() -> Iterator[ControllerProcess]:
    """A process for the controller, which imports meanwhile what it needs. It is ended if anything is wrong."""
    process = ControllerProcess()
    try:
        yield process
    except BaseException:
        process.kill()
        raise


def _resume(options: RunOptions) -> int:
    assert options.resume is not None
    if options.dry_run or options.run_dir is not None:
        given = "--dry-run" if options.dry_run else "--run-dir"
        raise CommandError(
            f"--resume goes on in the run's own directory; found {given}, expected --set or --plain at most"
        )
    from tailrace.pipeline.run.figures.metrics import read_metrics
    from tailrace.pipeline.run.launching.attaching import check_resumed, to_go_on
    from tailrace.pipeline.run.resume_changes import with_changes

    directory = RunDirectory.open(options.resume)
    left = unwatched(directory)
    if left is not None:
        if directory.configuration().executor.name == "ray":
            return _watch_on(directory, left, options)
        _await_end(directory)
    with _controller() as process:
        done = max((row["step"] for row in read_metrics(directory.metrics) if row["kind"] == "step"), default=0)
        config, changed = with_changes(directory.configuration(), _settings(options), done=done)
        faults = _faults(options)
        check(to_go_on(config, directory, faults), prompts=not directory.prepared.exists())
        check_resumed(directory, changed)
        directory.lock()
        order = ControllerOrder(RESUME, str(directory.root), config.model_dump(mode="json"), changed, faults)
        return watch(directory, process, order, plain=options.plain)


def _watch_on(directory: RunDirectory, pid: int, options: RunOptions) -> int:
    """Watch a run that went on when its watcher was killed.

    Raises:
        CommandError: it is to change.
    """
    if _settings(options) or _faults(options):
        raise CommandError(
            f"{directory.root}: found a run under way (process {pid}), which --resume alone watches; expected no changes: "
            f"end it first, with: kill {pid}"
        )
    return watch(directory, LeftController(directory, pid), None, plain=options.plain)


def _await_end(directory: RunDirectory) -> None:
    until = time.monotonic() + _END_S
    while directory.running() and time.monotonic() < until:
        time.sleep(0.05)


def _settings(options: RunOptions) -> list[str]:
    """The changes that a command line asks for, each as ``KEY=VALUE``."""
    flags = {"seed": options.seed, "executor.name": options.executor, "executor.ray_address": options.ray_address}
    return [*options.settings, *(f"{key}={value}" for key, value in flags.items() if value is not None)]


def _faults(options: RunOptions) -> dict[str, Any]:
    """The faults of the driver that goes on, by their keys of a configuration.

    Raises:
        ConfigError: one is not valid.
    """
    given = {
        "faults": tuple(written_fault(kind, text) for kind, text in options.faults) or None,
        "mtbf_s": options.mtbf_s,
        "fault_seed": options.fault_seed,
    }
    return {key: value for key, value in given.items() if value is not None}
