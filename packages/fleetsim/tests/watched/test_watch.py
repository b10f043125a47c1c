"""What is watched: the spans that all events show, some replicas of a large fleet, and no other run than unwatched."""

import pytest

from tailrace.controller.controller import Controller
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.fleetsim.results import watch as watch_module
from tailrace.fleetsim.results.watch import watch
from tailrace.fleetsim.run import simulate
from tailrace.report.fold.folds import Folds
from tailrace.report.fold.loads import FIRST_LAG, LAGS

from .conftest import LAMINAR, STALEFLOW, SYNCHRONOUS, configured


def spans(timeline):
    return sorted((s.role, s.member, s.start_s, s.end_s, s.doing, s.label) for s in timeline.spans)


@pytest.mark.parametrize("pipeline", [LAMINAR, STALEFLOW, SYNCHRONOUS], ids=["laminar", "staleflow", "synchronous"])
def test_nothing_is_missed_that_a_timeline_of_all_events_shows(pipeline):
    config = configured(pipeline, steps=3, faults=["replica@30s"])
    simulation = Simulation(build_fleet(config))
    simulation.run()
    controller = Controller(simulation.fleet.spec, relays=simulation.fleet.relays)
    folds = Folds(controller.view)
    for now, events, commands in simulation.log.instants:
        controller.handle_all(events, now)
        folds.observe(now, events, commands)
    folds.close()
    everything = folds.timeline
    watched = watch(config)
    assert spans(watched.folds.timeline) == spans(everything)
    assert watched.folds.timeline.marks == everything.marks
    assert watched.folds.timeline.marks


def test_watching_changes_nothing(laminar):
    assert laminar.result.events == simulate(laminar.config).events


def test_of_a_large_fleet_some_are_watched(monkeypatch):
    monkeypatch.setattr(watch_module, "MOST_REPLICAS", 3)
    monkeypatch.setattr(watch_module, "FEWEST_REPLICAS", 2)
    config = configured(LAMINAR, steps=3, rollout_gpus=8)
    watched, whole = watch(config).folds, simulate(config)
    assert (watched.replicas, watched.loads.of, watched.sampled) == (("r0", "r2", "r5"), 8, True)
    assert {s.member for s in watched.timeline.spans if s.role == "replica"} == {"r0", "r2", "r5"}
    assert {mark.member for mark in watched.timeline.marks if mark.role == "replica"} <= {"r0", "r2", "r5"}
    assert watched.loads.running.rows == 3
    assert [batch.version for batch in whole.batches] == list(watched.batches.begun) == [1, 2, 3]


def test_fewer_are_watched_in_a_long_run(monkeypatch):
    monkeypatch.setattr(watch_module, "FEWEST_REPLICAS", 2)
    monkeypatch.setattr(watch_module, "MOST_VISITS", 12)
    watched = watch(configured(LAMINAR, steps=3, rollout_gpus=8)).folds
    assert len(watched.replicas) == 4


def test_flows_add_up_to_what_was_generated_and_trained_on():
    watched = watch(configured(LAMINAR, warm_up=0))
    loads, result = watched.folds.loads, watched.result
    generated = loads.generated(0.0, result.duration_s)
    trained = sum(sum(batch.lengths) for batch in watched.folds.batches.trained)
    prompts = sum(batch.tokens for batch in result.batches) - trained
    assert 0 < prompts < 0.25 * trained  # 162 tokens on average, beside responses of 1,300
    assert generated >= trained  # what was under way at the end was generated too
    assert generated == pytest.approx(result.generated_tokens_per_s * result.duration_s, rel=0.05)  # to the last tick
    half_s = result.duration_s / 2
    assert loads.generated(0.0, half_s) + loads.generated(half_s, result.duration_s) == pytest.approx(generated)
    moments = range(len(loads.flow.ends_s))
    running = [sum(loads.flow.row(FIRST_LAG + lag)[at] for lag in range(LAGS)) for at in moments]
    assert running == pytest.approx([sum(loads.running.row(row)[at] for row in range(4)) for at in moments])


def test_progress_is_told(monkeypatch):
    monkeypatch.setattr(watch_module, "TELL_EVERY_S", 0.0)
    told = []
    watch(configured(LAMINAR, steps=3), listener=told.append)
    assert [p.now_s for p in told] == sorted(p.now_s for p in told)
    assert {p.steps for p in told} == {3}
    assert told[-1].step == 2  # the simulation ends with the third
    assert told[-1].trajectories == 2 * 16 * 8
    assert told[-1].trajectories_per_s > 0
