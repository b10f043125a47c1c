"""A log tells each trajectory's story, and how long a decoding step took."""

import random

import pytest

from tailrace import contracts as c
from tailrace.controller.trajectories import GroupPhase
from tailrace.controller.view import TrajectoryRow
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.cost_model_fit import fit_cost_model
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.repack import ThroughputModel
from tailrace.report.explain import _event, explain

from .conftest import STALEFLOW, a_run, configured

REDUNDANT = STALEFLOW | {"batching": {"name": "redundant", "surplus_samples": 1, "filter_equal_rewards": True}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = configured(REDUNDANT, faults=["replica:r1@20s", "replica:r2@45s"])
    return a_run(tmp_path_factory.mktemp("runs") / "run", config)


def texts(directory, trajectory):
    return [line.text for line in explain(directory, trajectory)]


def given(simulation, kind):
    return [command for _, _, commands in simulation.log.instants for command in commands if isinstance(command, kind)]


def test_the_story_of_a_trained_trajectory_has_every_station(run):
    directory, simulation = run
    trajectory = given(simulation, c.Step)[0].mini_batches[0][0]
    told = texts(directory, trajectory)
    stations = [
        "routed to",
        "finished on",
        "scored: reward",
        "its group is complete",
        "given to the trainer at staleness 0, in the batch of version 1",
        "trained on: version 1 is made",
    ]
    places = [next(index for index, text in enumerate(told) if station in text) for station in stations]
    assert places == sorted(places), told


def test_gradients_that_are_added_early_are_part_of_the_story(tmp_path):
    directory, simulation = a_run(tmp_path / "run", configured(STALEFLOW | {"training": "streamed"}))
    trajectory = given(simulation, c.Accumulate)[0].trajectories[0]
    told = texts(directory, trajectory)
    stations = [
        "given to cell 0 of the trainer at staleness 0, which adds its gradients for version 1",
        "its gradients were added; the weights change with the last of the batch of version 1",
        "trained on: version 1 is made",
    ]
    places = [next(index for index, text in enumerate(told) if station in text) for station in stations]
    assert places == sorted(places), told


@pytest.mark.parametrize(
    ("stops", "said"),
    [(c.Why.MOVED, ", before it could move"), (c.Why.PULLING, ", before it was stopped"), (None, "")],
)
def test_what_finishes_while_it_is_told_to_move_says_that_it_did_not(stops, said):
    known = TrajectoryRow(0, "r0", None, 0, False, GroupPhase.GENERATING, 0)
    told = list(_event(c.Finished("r0", "7.0", 9, answers=1), "7.0", known, stops))
    assert told == [f"finished on r0 with 9 tokens (stop){said}"]


def test_a_group_is_answered_with_its_trajectories(run):
    """The first trajectory of the log is an evaluation's: it is no example of one that is trained on."""
    directory, simulation = run
    first, *_ = given(simulation, c.Route)
    assert first.trajectories[0].purpose is c.Purpose.EVAL
    with pytest.raises(RunDirectoryError, match=r"'0', .*: 0\.0 \.\.\. 0\.4$"):
        explain(directory, "0")
    with pytest.raises(RunDirectoryError, match=r"'nobody', .* such as \d+\.\d$"):
        explain(directory, "nobody")


def test_every_trajectory_that_was_given_to_a_replica_has_a_story_that_ends(run):
    directory, simulation = run
    names = {r.trajectory for route in given(simulation, c.Route) for r in route.trajectories if r.purpose == "train"}
    for trajectory in random.Random(0).sample(sorted(names), 12):
        last = texts(directory, trajectory)[-1]
        assert "trained on: version" in last or "dropped" in last, (trajectory, last)


def test_reasons_are_those_of_the_commands(run):
    directory, simulation = run
    pulled = next(x for x in given(simulation, c.Interrupt) if x.reason.why is c.Why.PULLING)
    version = int(pulled.reason.numbers["version"])
    assert f"interrupted on {pulled.replica}: it pulls version {version}" in texts(directory, pulled.trajectories[0])
    surplus = next(x for x in given(simulation, c.Abort) if x.reason.why is c.Why.SURPLUS_SAMPLE)
    assert texts(directory, surplus.trajectories[0])[-1] == "dropped: its group has all the samples that it needs"
    route, index = next(
        (route, index)
        for route in given(simulation, c.Route)
        for index in range(len(route.trajectories))
        if "gain" in route.reason(index).numbers
    )
    gain = route.reason(index).numbers["gain"]
    told = texts(directory, route.trajectories[index].trajectory)
    assert any(f"routed to {route.replica}: the routing policy chose it (gain {gain:,.4g}" in text for text in told)


def test_the_death_of_its_replica_is_part_of_the_story(run):
    directory, simulation = run
    at_s, held = None, set()
    for now, events, commands in simulation.log.instants:
        if any(isinstance(event, c.Down) and event.id == "r1" for event in events):
            at_s = now
            break
        for command in commands:
            if isinstance(command, c.Route) and command.replica == "r1":
                held |= {ref.trajectory for ref in command.trajectories}
        held -= {event.trajectory for event in events if isinstance(event, c.Finished | c.Interrupted)}
        held -= {name for command in commands if isinstance(command, c.Abort) for name in command.trajectories}
    (line,) = [line for line in explain(directory, min(held)) if "r1 is down" in line.text]
    assert line.at_s == at_s


def test_an_evaluation_has_a_story_too(run):
    directory, simulation = run
    route = next(r for r in given(simulation, c.Route) if r.trajectories[0].purpose == "eval")
    told = texts(directory, route.trajectories[0].trajectory)
    assert "an evaluation of version 0" in told[0]
    assert "scored: reward" in told[-1]


def test_a_driver_that_died_is_part_of_the_story(tmp_path):
    directory, simulation = a_run(tmp_path / "run", crash_at_step=2)
    routed = {False: set(), True: set()}
    resumed = False
    for _, events, commands in simulation.log.instants:
        resumed = resumed or any(isinstance(event, c.Resumed) for event in events)
        refs = [ref for command in commands if isinstance(command, c.Route) for ref in command.trajectories]
        routed[resumed].update(ref.trajectory for ref in refs)
    both = min(routed[False] & routed[True])
    assert "the driver died, and the run went on" in texts(directory, both)


def test_a_move_names_where_it_goes_and_where_it_comes_from(tmp_path):
    directory, simulation = a_run(tmp_path / "run")
    moved = next(x for x in given(simulation, c.Interrupt) if x.reason.why is c.Why.MOVED)
    told = texts(directory, moved.trajectories[0])
    assert f"interrupted on {moved.replica}: a move to {moved.reason.who}" in told
    assert any(f"routed to {moved.reason.who}: a move from {moved.replica}, " in text for text in told)


def test_an_unknown_trajectory_is_one_clear_line(run):
    directory, _ = run
    with pytest.raises(
        RunDirectoryError, match=r"found no trajectory 'x', expected one that a replica was given, such as"
    ):
        explain(directory, "x")


MEASURED = ThroughputModel(2e-6, 3e-3, 2e-4, 5e-3)


def snapshots(directory, model, count, *, most=100, noise=0.0):
    numbers = random.Random(1)
    with EventLog(directory.events) as log:
        for at in range(count):
            running = numbers.randint(1, most)
            kv = numbers.random()
            rate = model.throughput(kv * 1000, running) * numbers.uniform(1 - noise, 1 + noise)
            for half in (0.0, 0.25):
                shot = c.Snapshot("r0", kv, running, 0, 0, 0, 0, tokens_per_s=rate, kv_capacity_tokens=1000)
                log.append(at + half, [shot], [])


def test_the_cost_model_of_a_run_is_found_again(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", {})
    model = ThroughputModel(2e-6, 3e-3, 2e-4, 5e-3)
    snapshots(directory, model, 60)
    fit = fit_cost_model(directory)
    assert fit.error < 0.01
    assert fit.model.step_latency_s(500, 60) == pytest.approx(model.step_latency_s(500, 60), rel=0.01)
    directory.unlock()


@pytest.mark.parametrize(
    ("model", "settings", "doubts"),
    [
        (MEASURED, {}, []),
        (MEASURED, {"noise": 0.1}, []),
        (MEASURED, {"count": 20}, ["22 snapshots are too few"]),
        (MEASURED, {"noise": 0.4, "count": 300}, ["were left out are off by"]),
        (MEASURED, {"most": 12}, ["with at most 12 at once no batch was bound by computing"]),
        (ThroughputModel(0.0, 3e-3, 2e-4, 5e-3), {}, ["k1 is 0 or nearly"]),
        (ThroughputModel(2e-6, 0.0, 2e-4, 5e-3), {}, ["no batch was bound by reading the weights"]),
    ],
)
def test_a_fit_says_whether_it_may_be_used(tmp_path, model, settings, doubts):
    directory = RunDirectory.create(tmp_path / "run", {})
    snapshots(directory, model, **{"count": 80, **settings})
    directory.unlock()
    found = fit_cost_model(directory).doubts
    assert len(found) == len(doubts)
    for said, expected in zip(found, doubts, strict=True):
        assert expected in said


def test_a_poor_fit_is_off_on_what_was_left_out_and_not_only_there(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", {})
    snapshots(directory, MEASURED, 80, noise=0.5)
    directory.unlock()
    fit = fit_cost_model(directory)
    assert fit.error > 0.05
    assert fit.held_out >= fit.error * 0.9
    assert fit.running == (1, 100)


def test_too_short_a_run_says_so(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", {})
    snapshots(directory, ThroughputModel(2e-6, 3e-3, 2e-4, 5e-3), 3)
    with pytest.raises(RunDirectoryError, match="steady snapshots, expected at least 20"):
        fit_cost_model(directory)
    directory.unlock()
