"""A log tells each trajectory's story, and how long a decoding step took."""

import random

import pytest

from tailrace import contracts as c
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.run.explain import explain
from tailrace.pipeline.run.fit import fit_cost_model
from tailrace.pipeline.testing import World
from tailrace.repack import ThroughputModel

CONFIG = {
    "app": "staleflow",
    "task": {"name": "long-chain-sum", "held_out_size": 8},
    "pipeline": {
        "admission": {"name": "bounded", "bound": 1},
        "batching": {"name": "redundant", "surplus_samples": 1, "filter_equal_rewards": True},
        "routing": {"name": "marginal-throughput", "k1": 1e-6, "k2": 1e-3, "k3": 1e-4, "k4": 5e-3},
        "sync": "when-useful",
        "relocation": "none",
        "steps": 6,
        "prompts_per_step": 4,
        "samples_per_prompt": 4,
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = validate([("test", CONFIG)])
    world = World(Controller(build_spec(config)), 3, kill_rate=0.03)
    world.run()
    directory = RunDirectory.create(tmp_path_factory.mktemp("runs") / "run", config.model_dump(mode="json"))
    with EventLog(directory.events) as log:
        for now, event in world.log:
            log.append(now, event)
    yield directory, config, world
    directory.unlock()


def test_the_story_of_a_trained_trajectory_has_every_station(run):
    directory, config, world = run
    trajectory = next(iter(world.consumed))
    texts = [line.text for line in explain(directory, config, trajectory)]
    stations = [
        "admitted",
        "routed to",
        "finished on",
        "scored",
        "group is complete",
        "trained on: the batch",
        "its batch is",
    ]
    places = [next(index for index, text in enumerate(texts) if station in text) for station in stations]
    assert places == sorted(places), texts


def test_every_trajectory_that_was_admitted_has_a_story_that_ends(run):
    directory, config, world = run
    names = {
        ref.trajectory for step in world.commands for x in step if isinstance(x, c.Route) for ref in x.trajectories
    }
    for trajectory in random.Random(0).sample(sorted(name for name in names if not name.startswith("e")), 12):
        last = explain(directory, config, trajectory)[-1].text
        assert "its batch is trained on" in last or "dropped" in last, (trajectory, last)


def test_interruptions_name_their_reason(run):
    directory, config, world = run
    interrupts = [x for step in world.commands for x in step if isinstance(x, c.Interrupt)]
    trajectory = interrupts[0].trajectories[0]
    texts = [line.text for line in explain(directory, config, trajectory)]
    assert any("interrupted on" in text and "pulls version" in text for text in texts), texts


def test_an_unknown_trajectory_is_one_clear_line(run):
    directory, config, _ = run
    with pytest.raises(
        RunDirectoryError, match=r"found no trajectory 'x', expected GROUP.SAMPLE with a group from 0 to"
    ):
        explain(directory, config, "x")


def snapshots(directory, model, count):
    numbers = random.Random(1)
    with EventLog(directory.events) as log:
        for at in range(count):
            running = numbers.randint(1, 100)
            kv = numbers.random()
            rate = model.throughput(kv * 1000, running)
            for half in (0.0, 0.25):
                shot = c.Snapshot("r0", kv, running, 0, 0, 0, 0, tokens_per_s=rate, kv_capacity_tokens=1000)
                log.append(at + half, shot)


def test_the_cost_model_of_a_run_is_found_again(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", {})
    model = ThroughputModel(2e-6, 3e-3, 2e-4, 5e-3)
    snapshots(directory, model, 60)
    fit = fit_cost_model(directory)
    assert fit.error < 0.01
    assert fit.model.step_latency_s(500, 60) == pytest.approx(model.step_latency_s(500, 60), rel=0.01)
    directory.unlock()


def test_too_short_a_run_says_so(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", {})
    snapshots(directory, ThroughputModel(2e-6, 3e-3, 2e-4, 5e-3), 3)
    with pytest.raises(RunDirectoryError, match="steady snapshots, expected at least 20"):
        fit_cost_model(directory)
    directory.unlock()
