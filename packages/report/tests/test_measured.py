"""A real run's figures: its rate from steady state alone, its staleness, its bubbles; and runs that say too little."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.figures.metrics import read_metrics
from tailrace.report.comparison_page import Compared, before_the_drain, timelines
from tailrace.report.errors import MeasuredError
from tailrace.report.figures.steady import measured
from tailrace.report.fold.folds import evenly
from tailrace.report.fold.timeline import Doing, Span
from tailrace.report.record import read_record

from .conftest import STALEFLOW, a_run, configured

STEPS = 6


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A run that a simulation left: its files are those of a real one."""
    return a_run(tmp_path_factory.mktemp("runs") / "run", configured(STALEFLOW, steps=STEPS))[0]


@pytest.fixture(scope="module")
def figures(directory):
    return measured(read_record(directory), "real")


def test_the_rate_leaves_out_the_start_up(directory, figures):
    rows = [row for row in read_metrics(directory.metrics) if row["kind"] == "step"]
    assert len(rows) == STEPS
    length_s = rows[-1]["t"] - rows[1]["t"]
    assert figures.batches == 4
    assert figures.response_tokens_per_s == pytest.approx(
        sum(row["response_tokens"] for row in rows[2:]) / length_s,
        rel=1e-4,  # metrics are rounded to a millisecond
    )
    assert figures.step_s == pytest.approx(length_s / 4, rel=1e-4)
    expected = sum(row["staleness_mean"] * row["trajectories"] for row in rows[2:])
    assert figures.staleness_mean == pytest.approx(expected / sum(row["trajectories"] for row in rows[2:]))
    assert figures.staleness_max == max(row["staleness_max"] for row in rows[2:])
    assert sum(figures.staleness.values()) == sum(row["trajectories"] for row in rows[2:])
    assert max(figures.staleness) == figures.staleness_max
    assert {used.role for used in figures.roles} == {"trainer", "replica"}
    assert (figures.simulated, figures.tokens_per_s, figures.cost_per_million) == (False, None, None)
    json.dumps(figures.to_json(), allow_nan=False)


def test_its_timeline_has_the_trainer_and_some_of_its_replicas(directory, figures, monkeypatch):
    monkeypatch.setattr("tailrace.report.comparison_page.ROWS", 2)
    (chart,) = timelines([Compared(figures, read_record(directory).folds)])
    assert {row for trace in chart.data for row in trace["y"]} == {"trainer", "r0", "r1"}
    assert figures.measured_s[0] < chart.layout["xaxis"]["range"][1] <= figures.measured_s[1] + 0.001


def test_several_are_drawn_over_the_same_time(directory, figures):
    other = read_record(a_run(directory.root.parent / "other", configured(steps=3))[0])
    systems = [Compared(figures, read_record(directory).folds), Compared(measured(other, "other"), other.folds)]
    begin, end = zip(*(chart.layout["xaxis"]["range"] for chart in timelines(systems)), strict=True)
    assert end[0] - begin[0] == pytest.approx(end[1] - begin[1], abs=0.01)


def test_what_was_interrupted_is_counted(directory, figures):
    record = read_record(directory)
    pulls = sum(each.kind == "interrupted for a pull" for each in record.folds.interruptions.all)
    assert figures.interrupting_pulls_per_batch == pulls / STEPS > 0


def test_a_run_of_one_step_has_no_rate(tmp_path):
    directory, _ = a_run(tmp_path / "run", until_step=1)
    with pytest.raises(MeasuredError, match=r"found 1 step, expected 2 or more"):
        measured(read_record(directory), "real")


def test_a_directory_of_something_else_is_no_run(tmp_path):
    with pytest.raises(RunDirectoryError, match="expected a run directory"):
        read_record(RunDirectory(tmp_path))


@given(st.lists(st.integers(0, 9), unique=True, min_size=1), st.integers(1, 12))
def test_rows_are_chosen_in_order(names, most):
    chosen = evenly([str(name) for name in names], most)
    assert len(chosen) == min(most, len(names)) == len(set(chosen))
    places = [names.index(int(name)) for name in chosen]
    assert places == sorted(places)
    assert places[0] == 0


def test_the_drain_at_the_end_of_a_run_is_not_drawn():
    def idle(at_s):
        return Span("replica", "r0", Doing.IDLE, at_s, at_s + 10, "every prompt of the run is admitted")

    assert before_the_drain([], 0.0, 100.0) == 100.0
    assert before_the_drain([idle(80.0), idle(70.0)], 0.0, 100.0) == 70.0
    assert before_the_drain([idle(5.0)], 0.0, 100.0) == 100.0  # nearly all of it


POOLS = ({"name": "small", "count": 2}, {"name": "large", "count": 1, "tp": 4})


@pytest.mark.parametrize(
    ("rollout", "executor", "gpus"),
    [
        ({"replicas": 3}, {"device": "cuda"}, 2 + 3),
        ({"replicas": 3, "pools": POOLS}, {"device": "cuda"}, 2 + 2 + 4),
        ({"replicas": 3, "pools": POOLS}, {"device": "cpu"}, 0),
        ({"replicas": 3}, {"device": "cuda", "trainer_gpus": 0.6, "replica_gpus": 0.4}, 1.2 + 1.2),
    ],
)
def test_devices_are_those_that_its_members_ask_for(directory, rollout, executor, gpus):
    """Devices of each pool count, and cores that stand for devices do not."""
    record = read_record(directory)
    told = {"executor": {"trainer_gpus": 1.0, "replica_gpus": 1.0, **executor}, "trainer": {"processes": 2}}
    found = measured(replace(record, config=RunConfig.model_validate({**told, "rollout": rollout})), "real")
    assert found.gpus == pytest.approx(gpus)
    assert ("processor cores" in found.fleet) is (gpus == 0)
