"""Who watches a controller: another one takes the place of one that dies, as often as it should, or it is said how to go on."""

import dataclasses
import os
import signal
import time
from types import SimpleNamespace

import pytest

from tailrace.cli.errors import CommandError
from tailrace.cli.runs.control import _failed
from tailrace.cli.runs.controller_process import ATTACH, LOG, LeftController
from tailrace.cli.runs.controller_watcher import RunWatcher, unwatched, watch
from tailrace.cli.runs.run import RunOptions, run
from tailrace.contracts import Tick
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import RunDirectoryError, RunWriteError
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.run.figures.status import RunStatus
from tailrace.runtime.hosts.ray_cluster import CLAIM, RayCluster

KILLED = -signal.SIGKILL


class Scripted:
    """A controller that does something at each look, and ends with a status after the last.

    Args:
        acts: functions; the controller ends after them.
        status: with what it ends.
    """

    pids = iter(range(1000, 9999))

    def __init__(self, *acts, status=KILLED):
        self.pid, self.acts, self.status = next(self.pids), list(acts), status
        self.orders, self.told = [], []

    def order(self, order):
        self.orders.append(order)

    def poll(self):
        if self.acts:
            self.acts.pop(0)(self)
            return None
        return self.status

    def stop(self):
        self.told.append("stop")

    def kill(self):
        self.told.append("kill")
        self.acts, self.status = [], KILLED


class Said:
    """Stands for a display."""

    def __init__(self):
        self.lines, self.steps = [], []

    def say(self, text):
        self.lines.append(text)

    def __call__(self, status):
        self.steps.append(status.step)


@pytest.fixture
def directory(tmp_path):
    made = RunDirectory.create(tmp_path / "run", RunConfig().model_dump(mode="json"))
    with EventLog(made.events) as log:
        log.append(1.0, [Tick()], [])
    return made


@pytest.fixture
def on_ray(directory):
    RayCluster("tailrace-1", "127.0.0.1:1", "secret", 0.0, 60.0).write(directory.root)
    return directory


def watched(directory, *controllers, stopped=lambda: False, **how):
    first, *others = controllers
    waiting = iter(others)
    found = RunWatcher(directory, first, successor=lambda: next(waiting), pauses_s=(0.0, 0.0), **how)
    found.shown = Said()
    return found, found.until_over(stopped)


def step(number):
    def act(process):
        status = RunStatus(phase="training", step=number, pid=process.pid)
        write_json(RunDirectory(act.root).status, dataclasses.asdict(status))  # type: ignore[attr-defined]

    return act


def test_on_ray_another_one_attaches_at_once_with_the_faults_that_are_left(on_ray):
    faults = {"faults": ("trainer@step9",)}
    other = Scripted(status=0)
    found, status = watched(on_ray, Scripted(), other, faults=faults)
    assert status == 0
    (order,) = other.orders
    assert (order.work, order.root, order.faults) == (ATTACH, str(on_ray.root), faults)
    (line,) = found.shown.lines
    assert line.endswith("was ended by SIGKILL; another one attaches, and nobody restarts")
    assert found.last_words == []


def test_a_controller_that_trains_and_tells_nothing_for_long_is_told_of_once(directory):
    """Where members are threads of it nobody takes its place, and the display went on as if it trained."""
    first, second = step(1), step(2)
    first.root = second.root = directory.root  # type: ignore[attr-defined]
    looks = [lambda process: None] * 4
    found, status = watched(directory, Scripted(first, *looks, second, status=0), still_s=0.15)
    assert status == 0
    (line,) = found.shown.lines
    assert "has told nothing for 0 s" in line
    assert f"kill -9 {found.process.pid} ends it; go on with: tailrace run --resume {directory.root}" in line


def test_too_many_in_a_row_without_a_step_are_enough(on_ray):
    found, status = watched(on_ray, *(Scripted() for _ in range(3)))
    assert status == 128 + signal.SIGKILL
    (line,) = found.last_words
    assert f"3 in a row died without a step between them; go on with: tailrace run --resume {on_ray.root}" in line


def test_one_after_which_the_run_got_further_counts_no_more(on_ray):
    step.root = on_ray.root  # type: ignore[attr-defined]
    acts = [step(number) for number in range(6)]
    for act in acts:
        act.root = on_ray.root
    found, status = watched(on_ray, *(Scripted(act) for act in acts), Scripted(status=1))
    assert status == 1
    assert found.shown.steps == list(range(6))


def test_without_members_that_live_on_it_is_said_how_to_go_on(directory):
    found, status = watched(directory, Scripted(status=-signal.SIGSEGV))
    assert status == 128 + signal.SIGSEGV
    (line,) = found.last_words
    assert line.startswith("tailrace: the controller (process ")
    assert (
        f"was ended by SIGSEGV; its members ended with it; go on with: tailrace run --resume {directory.root}" in line
    )


def test_one_that_ended_by_itself_is_not_replaced(on_ray):
    assert watched(on_ray, Scripted(status=1))[1] == 1
    assert watched(on_ray, Scripted(), stopped=lambda: True)[1] == 130


@pytest.mark.parametrize("free", [0, 1 << 40])
def test_one_that_could_not_write_why_it_failed_is_not_silent(directory, monkeypatch, free):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    found, _ = watched(directory, Scripted(status=1))
    (line,) = found.last_words
    assert (f"found 0 KiB free for {directory.root / 'controller.log'}" in line) == (free == 0)
    assert line.endswith(f"go on with: tailrace run --resume {directory.root}")


def test_of_one_that_a_library_ended_the_last_line_is_told(directory):
    log = directory.root / LOG
    log.write_text("of the run before\n")
    ends = Scripted(lambda _: log.write_text(log.read_text() + "Failed to connect to GCS\n"), status=1)
    (line,) = watched(directory, ends)[0].last_words
    assert f"the last line of {log} is 'Failed to connect to GCS'; go on with: tailrace run --resume" in line
    assert "of the run before" not in line
    (line,) = watched(directory, Scripted(status=1))[0].last_words
    assert f"see {log}" in line


def test_one_whose_directory_is_gone_is_not_silent(directory, monkeypatch):
    def gone(path):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("shutil.disk_usage", gone)
    found, _ = watched(directory, Scripted(status=1))
    assert found.last_words == [
        f"tailrace: the run failed and did not say why: {directory.root}: No such file or directory"
    ]


def test_one_that_stands_still_is_killed_and_replaced(on_ray):
    claim = on_ray.root / CLAIM
    claim.touch()

    def claims(process):
        os.utime(claim, ns=(time.time_ns(), time.time_ns()))

    first = Scripted(lambda _: None, claims, *[lambda _: time.sleep(0.1)] * 100)
    found, status = watched(on_ray, first, Scripted(*[lambda _: time.sleep(0.1)] * 9, status=0), silent_s=0.5)
    assert (status, first.told) == (0, ["kill"])  # the other one never claimed, as while it starts
    assert "was silent for 0 s and was killed; another one attaches" in found.shown.lines[0]


def test_one_that_takes_anothers_place_and_never_claims_the_run_is_killed(on_ray):
    RayCluster("tailrace-1", "127.0.0.1:1", "secret", 0.0, 0.5).write(on_ray.root)
    (on_ray.root / CLAIM).touch()

    def hangs(process):
        time.sleep(0.1)
        process.acts.append(hangs)

    stuck = Scripted(hangs)
    found, status = watched(on_ray, Scripted(lambda _: None), stuck, Scripted(status=0))
    assert (status, stuck.told) == (0, ["kill"])
    assert "did not claim the run within 0.5 s (deadlines.unclaimed_s) and was killed; another" in found.shown.lines[1]


def test_what_a_controller_prints_is_shown_and_its_last_words_come_last(directory):
    log = directory.root / LOG
    log.write_text("of an earlier driver\n")

    def prints(text):
        def act(process):
            with log.open("a") as file:
                file.write(text)

        return act

    first = Scripted(prints("a warn"), prints("ing\ntailrace: interrupted\nhalf a"), status=130)
    found, _ = watched(directory, first)
    assert found.shown.lines == ["a warning"]
    assert found.last_words == ["tailrace: interrupted"]


def test_a_controller_whose_watcher_was_killed_is_found_and_watched_by_one_other(directory):
    write_json(directory.status, dataclasses.asdict(RunStatus(phase="training", pid=os.getpid())))
    assert unwatched(directory) is None  # nobody has watched it: it was not begun by a command
    (directory.root / "watcher").touch()
    assert unwatched(directory) == os.getpid()
    write_json(directory.summary, {})
    directory.unlock()
    assert unwatched(directory) is None

    seen = []

    def looks(process):
        with pytest.raises(RunDirectoryError, match="found another process that watches this run"):
            watch(directory, process, None, plain=True)
        seen.append(unwatched(directory))

    assert watch(directory, Scripted(looks, status=1), None, plain=True) == 1  # type: ignore[arg-type]
    assert seen == [None]


def test_changes_of_a_run_that_goes_on_unwatched_are_refused(directory):
    write_json(directory.status, dataclasses.asdict(RunStatus(phase="training", pid=os.getpid())))
    (directory.root / "watcher").touch()
    with pytest.raises(CommandError, match=rf"found a run under way \(process {os.getpid()}\).*expected no changes"):
        run(RunOptions(resume=directory.root, settings=("pipeline.steps=9",)))


def test_how_a_controller_ended_that_is_nobodys_child(directory):
    process = os.fork()
    if process == 0:
        time.sleep(60)
        os._exit(0)
    left = LeftController(directory, process)
    assert left.poll() is None
    left.kill()
    os.waitpid(process, 0)
    assert left.poll() == KILLED
    write_json(directory.status, {"phase": "interrupted"})
    assert left.poll() == 130
    write_json(directory.summary, {})
    assert left.poll() == 0


def test_a_report_that_cannot_be_written_is_no_failed_run_to_go_on_with(directory, capsys):
    """All of it is there but the report: nobody can `--resume` a finished run, which is what it said."""
    write_json(directory.summary, {})
    assert _failed(directory, RunWriteError(28, "No space left on device", str(directory.report))) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"tailrace: the run is complete, its report is not: {directory.report}: could not be written: No space"
    )
    assert line.endswith(f"; tailrace report {directory.root} writes it")
    assert "--resume" not in line
    assert _failed(directory, RunWriteError(28, "No space left on device", str(directory.config))) == 1
    assert f"; go on with: tailrace run --resume {directory.root}" in capsys.readouterr().err
