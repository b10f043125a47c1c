"""A replay of the log is the run: the controller comes to the same state, and a log that it cannot have made is refused."""

import json

import pytest

from tailrace.pipeline import __version__
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.replay import controller_of, replay, replayed
from tailrace.report.explain import explain
from tailrace.report.record import read_record

from .conftest import LAMINAR, STALEFLOW, a_run, configured

FAULTS = ("replica:r1@30s", "trainer@step3", "relay@40s", "scorer@50s", "data@60s")
ENVIRONMENT = {"calls": {"counts": {"1": 0.5, "3": 0.5}}, "latency": {"median": 8.0, "sigma": 0.8}}
TURNS = {"response": [{"median": 400, "sigma": 0.9}], "environment": ENVIRONMENT}


@pytest.mark.parametrize(
    ("config", "crash"),
    [
        (configured(LAMINAR, faults=FAULTS, relays=2), None),
        (configured(STALEFLOW, faults=FAULTS), None),
        (configured(LAMINAR), 3),
        (configured(STALEFLOW, steps=3, workload=TURNS, faults=["environment@step1"]), None),
    ],
    ids=["laminar", "staleflow", "crash", "turns"],
)
def test_a_replay_comes_to_the_state_of_the_run(tmp_path, config, crash):
    directory, simulation = a_run(tmp_path / "run", config, crash_at_step=crash)
    again = controller_of(directory)
    for instant, (now, events, commands) in zip(
        replayed(again, directory.events), simulation.log.instants, strict=True
    ):
        assert (instant.now, len(instant.events), len(instant.commands)) == (now, len(events), len(commands))
        assert again.view.now == now
    found, known = again.state(), simulation.controller.state()
    del found["fleet"], known["fleet"]  # the log has rates of snapshots that the simulated controller did not see
    assert found == known
    assert list(again.view.replicas()) == list(simulation.controller.view.replicas())
    assert again.view.counts == simulation.controller.view.counts


@pytest.fixture
def directory(tmp_path):
    return a_run(tmp_path / "run", configured(steps=2))[0]


def changed(directory, number, change):
    """Change a line of the log, counted from 1."""
    lines = directory.events.read_text().splitlines()
    instant = json.loads(lines[number - 1])
    change(instant)
    lines[number - 1] = json.dumps(instant)
    directory.events.write_text("\n".join(lines) + "\n")


def first_with(directory, key, kind):
    for number, line in enumerate(directory.events.read_text().splitlines()[1:], 2):
        if any(one["is"] == kind for one in json.loads(line)[key]):
            return number
    raise AssertionError(kind)


@pytest.mark.parametrize("look", [read_record, lambda directory: explain(directory, "0.0")], ids=["report", "explain"])
def test_a_log_of_another_version_is_refused_in_one_line_that_names_it(directory, look):
    number = first_with(directory, "commands", "Step")
    changed(directory, number, lambda instant: instant["commands"].pop())
    with pytest.raises(RunDirectoryError) as refused:
        look(RunDirectory.open(directory.root))
    said = str(refused.value)
    assert "\n" not in said
    assert said.startswith(f"{directory.events}, line {number}: found the commands ")
    assert f"wrote it (version {__version__}); read it, or go on with it, with that one" in said


def test_one_that_does_not_say_its_version_says_that(directory):
    content = json.loads(directory.config.read_text())
    assert content.pop("version") == __version__
    directory.config.write_text(json.dumps(content))
    assert read_record(RunDirectory.open(directory.root)).folds.run.finished  # which is no reason to refuse it
    changed(directory, first_with(directory, "commands", "Step"), lambda instant: instant["commands"].pop())
    with pytest.raises(RunDirectoryError, match="a version that did not say which"):
        read_record(RunDirectory.open(directory.root))


def test_an_event_of_nobody_is_refused_with_its_line(directory):
    number = first_with(directory, "events", "Finished")

    def another(instant):
        for event in instant["events"]:
            if event["is"] == "Finished":
                event["replica"] = "r99"

    changed(directory, number, another)
    with pytest.raises(RunDirectoryError, match=rf"line {number}: .*r99.*expected a log that this version wrote"):
        read_record(RunDirectory.open(directory.root))


def test_a_run_without_a_log_has_a_view_and_nothing_in_it(directory):
    directory.events.unlink()
    controller = controller_of(directory)
    assert replay(controller, directory.events) is None
    assert read_record(RunDirectory.open(directory.root)).folds.run.counts.admitted == 0
