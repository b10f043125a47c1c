"""A real run's figures: its rate from steady state alone, its staleness, its bubbles; and runs that say too little."""

import json

import pytest

from tailrace import contracts as c
from tailrace.fleetsim.errors import MeasuredError
from tailrace.fleetsim.picture.measured import measured
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.run.metrics import MetricsObserver, read_metrics
from tailrace.pipeline.testing import World

STEPS = 6


def config():
    pipeline = {"steps": STEPS, "prompts_per_step": 4, "samples_per_prompt": 4, "prompts_per_replica": 4}
    task = {"name": "long-chain-sum", "held_out_size": 12}
    return RunConfig.model_validate({"task": task, "pipeline": pipeline, "rollout": {"replicas": 3}})


class _Written:
    """Writes what an executor writes, while a world runs."""

    def __init__(self, directory):
        self.controller = Controller(build_spec(config()))
        self.log, self.metrics = EventLog(directory.events), MetricsObserver(directory.metrics, None)

    def __getattr__(self, name):
        return getattr(self.controller, name)

    def handle_all(self, events, now):
        return [command for event in events for command in self._handle(event, now)]  # as the executors do

    def _handle(self, event, now):
        if isinstance(event, c.Stepped):
            event = c.Stepped(event.version, {"tokens": 400.0, "wall_s": 0.2}, event.answers)
        self.log.append(now, event)
        commands = self.controller.handle(event, now)
        self.metrics.observe(now, event, commands, self.controller)
        return commands


@pytest.fixture
def directory(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", config().model_dump(mode="json"))
    written = _Written(directory)
    World(written, 4).run()
    written.log.close()
    written.metrics.close()
    directory.unlock()
    return directory


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


def test_a_log_of_another_version_leaves_the_metrics(directory):
    write_json(directory.summary, {"repacks": 12, "interrupting_pulls": 0, "migrated_trajectories": 6})
    written = directory.events.read_bytes()
    directory.events.unlink()
    with EventLog(directory.events) as log:
        log.append(0.0, c.Down("replica", "r99", "never started"))
    directory.events.write_bytes(directory.events.read_bytes() + written)
    found = measured(directory, name="real", rows=2, steps=2)
    assert found.scene is None
    assert "another version of Tailrace" in found.figures.notes[0]
    assert found.figures.roles == []
    assert (found.figures.moves_per_batch, found.figures.migrated_per_batch) == (2.0, 1.0)
    assert found.figures.response_tokens_per_s > 0


def test_a_run_of_one_step_has_no_rate(directory):
    lines = directory.metrics.read_text().splitlines(keepends=True)
    first = next(line for line in lines if '"kind": "step"' in line)
    directory.metrics.write_text(first)
    with pytest.raises(MeasuredError, match=r"found 1 step in metrics\.jsonl, expected 2 or more"):
        measured(directory, name="real", rows=2, steps=2)


def test_a_directory_of_something_else_is_no_run(tmp_path):
    with pytest.raises(RunDirectoryError, match="expected a run directory"):
        measured(RunDirectory(tmp_path), name="real", rows=2, steps=2)
