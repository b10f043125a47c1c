"""A real run's figures: its rate from steady state alone, its staleness, its bubbles; and runs that say too little."""

import json

import pytest

from tailrace.fleetsim.errors import MeasuredError
from tailrace.fleetsim.picture import files
from tailrace.fleetsim.picture.measured import measured
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.metrics import read_metrics

from .conftest import STALEFLOW, configured

STEPS = 6


@pytest.fixture
def directory(tmp_path):
    """Of a run that a simulation left: its files are those of a real one."""
    root = tmp_path / "run"
    files.simulate_into(root, configured(STALEFLOW, steps=STEPS, rollout_gpus=3), name="run")
    return RunDirectory(root)


def test_the_rate_leaves_out_the_start_up(directory):
    found = measured(directory, name="real", rows=2, steps=2)
    rows = [row for row in read_metrics(directory.metrics) if row["kind"] == "step"]
    assert len(rows) == STEPS
    length_s = rows[-1]["t"] - rows[1]["t"]
    figures = found.figures
    assert figures.batches == 4
    assert figures.response_tokens_per_s == pytest.approx(sum(row["response_tokens"] for row in rows[2:]) / length_s)
    assert figures.step_s == pytest.approx(length_s / 4)
    expected = sum(row["staleness_mean"] * row["trajectories"] for row in rows[2:])
    assert figures.staleness_mean == pytest.approx(expected / sum(row["trajectories"] for row in rows[2:]))
    assert figures.staleness_max == max(row["staleness_max"] for row in rows[2:])
    assert sum(figures.staleness.values()) == sum(row["trajectories"] for row in rows[2:])
    assert max(figures.staleness) == figures.staleness_max
    assert {used.role for used in figures.roles} == {"trainer", "replica"}
    assert (figures.simulated, figures.tokens_per_s, figures.cost_per_million) == (False, None, None)
    json.dumps(figures.to_json(), allow_nan=False)


def test_its_scene_has_some_of_its_replicas(directory):
    scene = measured(directory, name="real", rows=2, steps=2).scene
    assert (list(scene.loads), scene.drawn, scene.of) == (["r0", "r1"], 2, 3)
    assert {span.member for span in scene.spans if span.role == "replica"} == {"r0", "r1"}
    assert scene.shown_s[1] == scene.steps[-1][0]
    assert any(running > 0 for loads in scene.loads.values() for _, running in loads)


def test_what_was_interrupted_is_counted(directory):
    figures = measured(directory, name="real", rows=2, steps=2).figures
    summary = json.loads(directory.summary.read_text())
    assert figures.interrupting_pulls_per_batch == summary["interrupting_pulls"] / STEPS > 0
    assert figures.migrated_per_batch == summary["migrated_trajectories"] / STEPS
    assert figures.moves_per_batch == summary["repacks"] / STEPS


def test_a_run_of_one_step_has_no_rate(directory):
    lines = directory.metrics.read_text().splitlines(keepends=True)
    first = next(line for line in lines if '"kind": "step"' in line)
    directory.metrics.write_text(first)
    with pytest.raises(MeasuredError, match=r"found 1 step in metrics\.jsonl, expected 2 or more"):
        measured(directory, name="real", rows=2, steps=2)


def test_a_directory_of_something_else_is_no_run(tmp_path):
    with pytest.raises(RunDirectoryError, match="expected a run directory"):
        measured(RunDirectory(tmp_path), name="real", rows=2, steps=2)
