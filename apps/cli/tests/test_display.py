"""What a person sees: in a live display, in lines, and from another shell."""

import dataclasses
import io
import json
import math
import os
import time

import pytest

from tailrace.cli.components.plugins import registered
from tailrace.cli.console import plain_console
from tailrace.cli.errors import complain
from tailrace.cli.main import main
from tailrace.cli.runs.display import RunLines, clock, display, line, panel
from tailrace.cli.runs.status import read_status, view
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.pipeline.run.figures.status import RunStatus


def training(**changes):
    status = RunStatus(
        phase="training",
        app="laminar",
        run_dir="runs/x",
        pid=os.getpid(),
        updated_at=time.time(),
        wall_s=75.0,
        left_s=130.0,
        step=12,
        steps=40,
        version=12,
        reward=0.4321,
        accuracy=0.523,
        accuracy_before=0.312,
        staleness_mean=1.25,
        staleness_max=3,
        trained_tokens_per_s=2131.0,
        generated_tokens_per_s=4321.0,
        buffered_groups=17,
        trainer="training version 13",
        replicas=[
            {"id": "r0", "doing": "generating", "version": 12, "trajectories": 64, "kv": 0.5},
            {"id": "r1", "doing": "pulling version 12", "version": None, "trajectories": 0, "kv": 0.0},
        ],
        repacks=6,
        restarts={"replica": 1, "trainer": 1},
        recent_tokens_per_s=2345.0,
        waits=[
            {"for": "the trainer (rank 0) to step version 13", "waited_s": 31.0, "left_s": 600.0},
            {"for": "events of replica r0", "waited_s": 1.2, "left_s": 50.0},
        ],
    )
    for name, value in changes.items():
        setattr(status, name, value)
    return status


def text(renderable):
    console = plain_console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123 - ends with the test
    console.print(renderable)
    return console.export_text()


def test_the_panel_shows_what_a_person_wants_to_know():
    shown = text(panel(training(), wall_s=80.0))
    for words in (
        "laminar", "1 min 20 s", "step 12 of 40", "2 min 10 s left", "0.432", "52.3 %", "31.2 %", "1.25 mean, 3 max",
        "2,131 tokens/s", "4,321 tokens/s", "training version 13", "r0", "generating", "pulling version 12", "50%", "repacks",
        "last 10 steps", "2,345 tokens/s", "2 (1 replica, 1 trainer)",
        "waiting 31 s for the trainer (rank 0) to step version 13",
    ):  # fmt: skip
        assert words in shown
    assert "events of replica r0" not in shown


def test_what_others_wrote_cannot_act_on_the_terminal(capsys):
    """What a status says, incidents in plain lines, complaints, and what a controller printed."""
    hostile = "\x1b]0;title\x07\x1b[2J\rtailrace: all is well\u202e"
    escaped = r"\x1b]0;title\x07\x1b[2J\rtailrace: all is well\u202e"
    written = []
    RunLines(written.append)(training(incidents=[{"wall_s": 1.0, "text": hostile}], incidents_total=1))
    assert written[0].endswith(escaped)
    console = plain_console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    texts = {"incidents": [{"wall_s": 1.0, "text": hostile}], "notes": [hostile], "relays": {hostile: hostile}}
    waits = [{"for": hostile, "waited_s": 31.0, "left_s": 600.0}]
    member = {"role": hostile, "id": hostile, "machine": hostile, "reason": hostile, "health": hostile, "doing": "idle"}
    replica = {"id": hostile, "doing": hostile, "version": None, "trajectories": 0, "kv": 0.0}
    members = {"given_up": [member], "down": [member], "replicas": [replica], "waits": waits}
    for over in (False, True):
        told = training(**texts, **members, app=hostile, trainer=hostile, warning=hostile, run_dir=hostile, over=over)
        console.print(view(told, alive=True), view(told, alive=False))
    assert console.file.getvalue().count(escaped) > 20  # type: ignore[attr-defined]
    assert "\x1b]" not in console.file.getvalue()  # type: ignore[attr-defined]
    complain(f"no such verifier: {hostile}")
    assert capsys.readouterr().err == f"tailrace: no such verifier: {escaped}\n"


def test_what_looks_like_markup_is_shown_as_it_is():
    tag = "[dim] [/a/b]"
    replica = {"id": tag, "doing": "idle", "version": None, "trajectories": 0, "kv": 0.0}
    environment = {"id": tag, "doing": "idle", "sessions": 0, "answering": 0}
    told = training(seats={tag: tag}, relays={tag: tag}, replicas=[replica], environments=[environment])
    assert text(panel(told, wall_s=1.0)).count(tag) == 6


def test_a_pipeline_that_interrupts_shows_its_bound_its_pool_and_its_interruptions():
    status = training(
        bound=3, pooled=120, blocked_cycles=7, partial_rollout=True, repacks=0, interrupting_pulls=9, migrated=31
    )
    shown = text(panel(status, wall_s=80.0))
    for words in (
        "1.25 mean, 3 max, bound 3", "120 trajectories, blocked for 7 cycles", "interruptions", "9 for pulls, 31 migrated",
    ):  # fmt: skip
        assert words in shown
    assert "repacks" not in shown
    assert "bound" not in text(panel(training(), wall_s=80.0))
    assert "pool" not in text(panel(training(), wall_s=80.0))


def test_a_held_out_reward_stands_in_the_place_of_an_accuracy_that_is_not_known_and_else_beside_it():
    graded = training(accuracy=None, accuracy_before=None, held_out_reward=0.2, held_out_reward_before=0.05)
    shown = text(panel(graded, wall_s=80.0))
    assert "held-out reward  0.200 (before 0.050)" in shown
    assert "accuracy" not in shown
    assert "held-out reward 0.200 (before 0.050)" in line(graded, wall_s=1.0)
    both = " ".join(text(panel(training(held_out_reward=0.2), wall_s=80.0)).split())
    assert "held-out reward 0.200" in both
    assert "accuracy 52.3 % (before 31.2 %)" in both
    assert "held-out" not in text(panel(training(), wall_s=80.0))


def test_what_is_over_has_its_steps_and_nothing_under_way():
    status = training(phase="done", restarts={"replica": 2})
    status.rest()
    shown = text(panel(status, wall_s=80.0))
    assert "done  step 12 of 40" in shown
    for words in ("generat", "trainer", "buffered", "waiting", "r0", "left"):
        assert words not in shown


def test_a_simulation_shows_its_own_clock_and_nothing_that_is_learnt():
    shown = text(panel(training(simulated=True), wall_s=7200.0))
    assert "2 h 00 min simulated" in shown
    assert "reward" not in shown
    assert "accuracy" not in shown
    assert "2,131 tokens/s" in shown


def test_a_replica_that_contradicts_the_controller_is_said_in_red():
    status = training(contradictions=2)
    assert "2 snapshots of replicas contradict the controller" in line(status, wall_s=1.0)
    console = plain_console(width=120, force_terminal=True, color_system="standard", file=io.StringIO())
    console.print(panel(status, wall_s=1.0))
    assert "\x1b[31m2 snapshots of replicas contradict" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "contradict" not in line(training(), wall_s=1.0)


def test_a_member_that_is_given_up_is_shown_as_long_as_the_run_goes_on():
    status = training(given_up=[{"role": "replica", "id": "r1", "machine": "m0", "reason": "its device is gone"}])
    said = "replica r1 is given up on m0, and others do its work: its device is gone"
    assert said in line(status, wall_s=1.0)
    assert said in " ".join(text(panel(status, wall_s=1.0)).split())
    status.rest()
    assert said not in line(status, wall_s=1.0)
    status = training(given_up=[{"role": "ranker", "id": "0", "machine": "", "reason": "it has no model"}])
    assert "ranker 0 is given up, and nobody does its work: it has no model" in line(status, wall_s=1.0)


def test_a_warm_start_shows_its_progress():
    status = RunStatus(phase="warm start", detail="step 40 of 800, loss 1.250", app="laminar", left_s=95.0)
    shown = text(panel(status, wall_s=5.0))
    assert "step 40 of 800, loss 1.250" in shown
    assert "1 min 35 s left" in shown


def test_large_fleets_are_cut():
    replicas = [{"id": f"r{i}", "doing": "idle", "version": 1, "trajectories": 0, "kv": 0.0} for i in range(40)]
    shown = text(panel(training(replicas=replicas), wall_s=1.0))
    assert "and 24 more" in shown
    assert "r39" not in shown


def test_environments_have_rows_below_the_replicas():
    rows = [
        {"id": "0", "doing": "answering", "sessions": 64, "answering": 12},
        {"id": "1", "doing": "starting", "sessions": 0, "answering": 0},
    ]
    more = {"turns": 1234, "waiting_turns": 7, "answer_p50_s": 0.125, "answer_p99_s": 2.31, "workers": 4}
    shown = text(panel(training(environments=rows, **more), wall_s=1.0))
    for words in ("1,234, 7 wait for a session", "p50 0.12 s, p99 2.3 s"):
        assert words in shown
    heading, first, second = (line.split() for line in shown.splitlines()[-5:-2])
    assert heading == ["environment", "doing", "sessions", "answering", "workers"]
    assert first == ["0", "answering", "64", "12", "4"]
    assert second == ["1", "starting", "0", "0", "4"]
    many = [{**rows[0], "id": f"e{i}"} for i in range(20)]
    assert "and 4 more" in text(panel(training(environments=many), wall_s=1.0))
    for words in ("environment", "turns", "answers"):
        assert words not in text(panel(training(), wall_s=1.0))


def test_a_run_that_cannot_train_says_why_while_that_lasts():
    shown = text(panel(training(warning="60 of the last 64 groups were filtered"), wall_s=1.0))
    assert "60 of the last 64 groups were filtered" in shown


def test_lines_come_with_news_or_when_the_last_is_old():
    written, now = [], [0.0]
    lines = RunLines(written.append, clock=lambda: now[0])
    lines(training())
    lines(training(buffered_groups=3))
    assert len(written) == 1
    lines(training(step=13))
    lines(training(step=13, accuracy=0.6))
    assert len(written) == 3
    now[0] = 11.0
    lines(training(step=13, accuracy=0.6))
    lines(training(phase="writing the report"))
    assert len(written) == 5
    lines(training(phase="failed"))
    assert len(written) == 5
    assert all("\n" not in one for one in written)
    assert "step 12 of 40" in written[0]
    assert "waiting 31 s" in written[0]


def test_without_a_terminal_there_are_lines(capsys):
    with display() as listener:
        listener(training())
    assert "step 12 of 40" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 00 s"), (3661, "1 h 01 min"), (-3, "0 s")]
)
def test_clock(seconds, words):
    assert clock(seconds) == words


@pytest.fixture
def directory(tmp_path):
    made = RunDirectory.create(tmp_path / "run", RunConfig().model_dump(mode="json"))
    yield made
    made.unlock()


def write(directory, status):

    write_json(directory.status, {**dataclasses.asdict(status), "from_a_later_version": 1})


def test_status_of_a_run_that_is_alive(directory, capsys):
    write(directory, training(run_dir=str(directory.root)))
    assert main(["status", str(directory.root)]) == 0
    shown = capsys.readouterr().out
    assert "step 12 of 40" in shown
    assert f"process {os.getpid()} runs" in shown


def test_status_of_a_run_whose_process_is_gone(directory, capsys):
    write(directory, training(run_dir="runs/x"))
    directory.unlock()
    assert main(["status", str(directory.root)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "is gone" in shown
    assert f"tailrace run --resume {directory.root}".replace(" ", "") in shown.replace(" ", "")  # a long path is folded


def test_a_run_that_was_interrupted_says_how_to_go_on():
    shown = " ".join(text(view(training(phase="interrupted"), alive=False)).split())
    assert "the run was interrupted; go on with: tailrace run --resume runs/x" in shown
    failed = " ".join(text(view(training(phase="failed", simulated=True), alive=False)).split())
    assert "the simulated run failed" in failed
    assert "--resume" not in failed


def test_members_that_are_not_up_are_named():
    down = [{"role": "relay", "id": "1", "health": "starting"}, {"role": "replica", "id": "r1", "health": "starting"}]
    shown = text(panel(training(down=down), wall_s=80.0))
    assert "relay 1 is starting" in shown
    assert "replica r1 is" not in shown  # it has a row


def test_status_says_where_a_finished_run_has_its_report(directory):
    shown = text(view(training(phase="done"), alive=False))
    assert "runs/x/report.html" in shown


@pytest.mark.parametrize("width", [40, 60, 75, 76, 80, 90, 120])
def test_no_figure_is_cut_in_a_narrow_terminal(width):
    seats = {
        "replica r1": "core 1 of machine 127.0.0.1 (0.5 of each, by MPS)",
        "trainer 0.0": "core 0 of machine 10.0.0.12",
    }
    losses = {"loss": 0.123, "approx_kl": 0.00456, "entropy": 1.87, "grad_norm": 0.891}
    status = training(seats=seats, losses=losses, held_out_reward=0.777, bound=4)
    console = plain_console(width=width, record=True, file=io.StringIO())
    console.print(panel(status, wall_s=80.0))
    words = console.export_text().split()
    figures = "0.123 0.00456 1.87 0.891 0.777 52.3 (before 31.2 1.25 mean, 3 max, bound 4 2,131 4,321 2,345"
    others = "training version 13 17 groups 6 2 (1 replica, 1 trainer)"
    wanted = " ".join((*seats.values(), figures, others)).split()
    assert not [word for word in wanted if word not in words]


def test_status_for_scripts(directory, capsys):
    write(directory, training(updated_at=time.time() - 40.0, losses={"loss": math.nan, "entropy": 0.5}))
    assert main(["status", "--json", str(directory.root)]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["losses"] == {"loss": None, "entropy": 0.5}  # JSON has no NaN
    assert found["alive"] is True
    assert 39.0 < found["age_s"] < 3600.0
    assert found["step"] == 12
    write(directory, training(updated_at=time.time() + 40.0))  # by a machine whose clock is ahead
    assert main(["status", "--json", str(directory.root)]) == 0
    assert json.loads(capsys.readouterr().out)["age_s"] == 0.0


def test_watching_ends_with_the_run(directory, capsys, monkeypatch):
    write(directory, training())
    monkeypatch.setattr("tailrace.cli.runs.status.WATCH_S", 0.01)
    beats = iter([True, True, False])
    monkeypatch.setattr(RunDirectory, "running", lambda self: next(beats))
    assert main(["status", "--watch", str(directory.root)]) == 0
    assert "step 12 of 40" in capsys.readouterr().out


def test_how_to_go_on_is_typed_so_in_a_shell():
    said = text(view(training(phase="interrupted", run_dir="my runs/x"), alive=False))
    assert "go on with: tailrace run --resume 'my runs/x'" in " ".join(said.split())


def test_a_status_without_optional_keys_can_be_read(directory):
    write_json(directory.status, {"phase": "training"})
    assert read_status(directory).phase == "training"
    assert "training" in line(read_status(directory), wall_s=1.0)


def test_a_status_tells_where_the_run_is_now_though_it_was_moved(directory):
    write_json(directory.status, {"phase": "done", "run_dir": "/where/it/was"})
    assert read_status(directory).run_dir == str(directory.root)


def test_plugins_are_listed_with_who_brings_them(capsys):
    groups = registered()
    assert [point.name for point in groups["tailrace.app"]] == [
        "laminar",
        "robustrl",
        "rollpacker",
        "staleflow",
        "streamrl",
    ]
    assert main(["plugins"]) == 0
    shown = capsys.readouterr().out
    for words in ("tailrace.sync", "on-idle", "tailrace-repack", "tailrace.engine", "tailrace-rollout"):
        assert words in shown


def test_report_is_written_again(directory, capsys):
    assert main(["report", str(directory.root)]) == 0
    assert capsys.readouterr().out.strip() == str(directory.report)
    assert directory.report.stat().st_size > 1_000_000


def incident(text, wall_s=61.0):
    return {"wall_s": wall_s, "text": text}


def test_every_incident_is_a_line_once_even_if_the_run_fails_with_it():
    written = []
    lines = RunLines(written.append, clock=lambda: 0.0)
    lines(training())
    first = training(incidents=[incident("replica r0 died: x")], incidents_total=1)
    lines(first)
    lines(first)
    assert written[1:] == ["[1 min 01 s] replica r0 died: x"]
    lines(training(phase="failed", incidents=[incident("a"), incident("b"), incident("c")], incidents_total=3))
    assert [one.split("] ")[1] for one in written[2:]] == ["b", "c"]


def test_incidents_stay_above_the_live_display_and_the_last_stand_in_the_status(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with display() as listener:
        listener(training(incidents=[incident("replica r0 died: x")], incidents_total=1))
        listener(training(incidents=[incident("replica r0 died: x"), incident("r0 is back")], incidents_total=2))
    shown = capsys.readouterr().out
    assert shown.index("replica r0 died: x") < shown.index("r0 is back")
    assert shown.count("replica r0 died: x") == 1
    seven = training(incidents=[incident(f"incident {n}") for n in range(7)], incidents_total=7)
    told = text(view(seven, alive=True))
    assert "incident 1" not in told
    assert all(f"incident {n}" in told for n in range(2, 7))


def test_the_trainers_figures_are_shown_as_far_as_it_computes_them():
    losses = {"loss": 0.01234, "approx_kl": 0.0021, "grad_norm": 0.456}
    said = line(training(losses=losses), wall_s=80.0)
    for words in ("loss 0.0123", "KL 0.0021", "gradient norm 0.456", "trained 2,131 tokens/s"):
        assert words in said
    assert "entropy" not in said
    assert "entropy 1.5" in line(training(losses={**losses, "entropy": 1.5}), wall_s=80.0)
    assert "loss" not in line(training(), wall_s=80.0)
    assert "gradient norm" in text(panel(training(losses=losses), wall_s=80.0))
