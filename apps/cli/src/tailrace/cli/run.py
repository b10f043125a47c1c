"""``tailrace run``: starts or resumes a run, shows it, and prints its results."""

from __future__ import annotations

import os
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tailrace.cli.complaints import DEBUG, complain, one_line
from tailrace.cli.display import display
from tailrace.cli.errors import CommandError
from tailrace.cli.outcome import show_outcome
from tailrace.cli.preflight import check
from tailrace.cli.room import check_disk
from tailrace.cli.stopping import INTERRUPTED, Stopping
from tailrace.contracts import TailraceError
from tailrace.pipeline.config.gathered import Gathered
from tailrace.pipeline.config.target import configuration, written_fault
from tailrace.pipeline.errors import (
    ControllerError,
    DeadlineError,
    RoleError,
    RunFailedError,
    RunWriteError,
    SupersededError,
)
from tailrace.pipeline.hosts.ray_cluster import RayCluster
from tailrace.pipeline.run.directory import RunDirectory, check_new
from tailrace.pipeline.run.prompt_reading import sized
from tailrace.pipeline.run.status import RunStatus
from tailrace.rollout.wheel_tag import correct_wheel_tag

FAILED = 1
Work = Callable[[Callable[[RunStatus], None]], dict[str, Any]]


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


def run(options: RunOptions) -> int:
    """Run to the end. Returns the exit status.

    Raises:
        TailraceError: the command or the configuration is wrong; no file was written.
    """
    if (options.target is None) == (options.resume is None):
        raise CommandError("expected either a TARGET (an app's name or a TOML file) or --resume RUN")
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

    def work(listener: Callable[[RunStatus], None]) -> dict[str, Any]:
        from tailrace.pipeline.run.launch import attach as take_over
        from tailrace.report import write_report

        return take_over(directory, listener, report=write_report)

    return _supervise(directory, work, plain=plain)


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
    gathered = Gathered()
    found = None
    with gathered.check():
        found = check(config, f"{options.target}: ")
    with gathered.check():
        check_new(RunDirectory(root))
        check_disk(config, root)
    gathered.done()
    config = sized(config, found)
    if options.dry_run:
        from tailrace.cli.dry_run import show_plan

        show_plan(config, root, found.counts if found is not None else {})
        return 0
    directory = RunDirectory.create(root, config.model_dump(mode="json"))

    def work(listener: Callable[[RunStatus], None]) -> dict[str, Any]:
        from tailrace.pipeline.run.launch import launch
        from tailrace.report import write_report

        return launch(config, directory, listener, report=write_report)

    try:
        return _supervise(directory, work, plain=options.plain)
    except TailraceError:
        if not directory.events.exists():  # nothing ran: remove the directory, so that a corrected command can use it
            shutil.rmtree(directory.root)
        raise


def _resume(options: RunOptions) -> int:
    assert options.resume is not None
    if options.dry_run or options.run_dir is not None:
        given = "--dry-run" if options.dry_run else "--run-dir"
        raise CommandError(
            f"--resume goes on in the run's own directory; found {given}, expected --set or --plain at most"
        )
    from tailrace.pipeline.run.changes import with_changes
    from tailrace.pipeline.run.launch import to_go_on
    from tailrace.pipeline.run.metrics import read_metrics

    directory = RunDirectory.open(options.resume)
    done = max((row["step"] for row in read_metrics(directory.metrics) if row["kind"] == "step"), default=0)
    config, changed = with_changes(directory.configuration(), _settings(options), done=done)
    faults = _faults(options)
    check(to_go_on(config, directory, faults), prompts=not directory.prepared.exists())

    def work(listener: Callable[[RunStatus], None]) -> dict[str, Any]:
        from tailrace.pipeline.run.launch import resume
        from tailrace.report import write_report

        return resume(directory, listener, report=write_report, config=config, changed=changed, faults=faults)

    return _supervise(directory, work, plain=options.plain)


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


def _supervise(directory: RunDirectory, work: Work, *, plain: bool) -> int:
    """Show the run, and print one line if it is interrupted or fails."""
    go_on = f"go on with: tailrace run --resume {directory.root}"
    try:
        with display(plain=plain) as shown, Stopping(shown.say, go_on, end=partial(_end_at_once, directory)):
            summary = work(shown)
    except SupersededError as error:
        return complain(f"another controller has taken this one's place: {error}", status=FAILED)
    except KeyboardInterrupt:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        return complain(f"interrupted; {go_on}", status=INTERRUPTED)
    except (RunFailedError, RoleError, DeadlineError, ControllerError, RunWriteError) as error:
        return _failed(directory, error)
    except TailraceError:
        raise
    except Exception as error:
        return _failed(directory, error)
    finally:
        directory.unlock()
    show_outcome(summary, directory)
    return 0


def _end_at_once(directory: RunDirectory, status: int) -> None:
    """End this process and everything of its run on this machine."""
    cluster = RayCluster.read(directory.root)
    if cluster is not None:
        cluster.end(patience_s=0.0)
    os._exit(status)


def _failed(directory: RunDirectory, error: Exception) -> int:
    log = directory.root / "error.log"
    see = f"see {log}"
    try:
        with log.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{''.join(traceback.format_exception(error))}\n")
    except OSError as unwritten:  # the disk may be what failed
        see = f"{log} could not be written: {unwritten.strerror}"
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    what = one_line(error) if isinstance(error, TailraceError) else f"{type(error).__name__}: {one_line(error)}"
    go_on = "" if "--resume" in what else f"; go on with: tailrace run --resume {directory.root}"
    return complain(f"the run failed: {what.rstrip('.')}; {see}{go_on}", status=FAILED)
