"""The app's pipelines in virtual time: what each step trains on, how early gradients begin, how stale batches are."""

import dataclasses
from collections import defaultdict
from pathlib import Path

import pytest

from tailrace import contracts as c
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.figures.stream import StreamFigures

FOLDER = Path(__file__).parents[3] / "configs" / "streamrl"
STEPS, PROMPTS = 6, 8
SMALL = (f"pipeline.steps={STEPS}", f"pipeline.prompts_per_step={PROMPTS}", "evaluation.every=0")


class Seen:
    """A simulation of a configuration, and the (prompt, version) pairs of each of its steps."""

    def __init__(self, target, seed, *settings):
        config = configuration(target, settings=(*SMALL, *settings), seed=seed)
        self.simulation = Simulation(dataclasses.replace(build_fleet(config, seed=seed), batches=None))
        self.simulation.run()
        self.figures, self.pairs = StreamFigures(), defaultdict(set)
        serves, started = {}, {}
        for now, events, commands in self.simulation.log.instants:
            self.figures.observe(now, events, commands)
            serves |= {event.replica: event.version for event in events if isinstance(event, c.Pulled)}
            for command in commands:
                match command:
                    case c.Route(replica=replica, trajectories=refs):
                        started |= {ref.trajectory: (ref.prompt, serves[replica]) for ref in refs}
                    case c.Accumulate(version=version, trajectories=names):
                        self.pairs[version] |= {started[name] for name in names}
                    case c.Step(version=version, mini_batches=parts):
                        self.pairs[version] |= {started[name] for part in parts for name in part}


def expected():
    return {
        step + 1: {(prompt, max(0, step - 1)) for prompt in range(step * PROMPTS, (step + 1) * PROMPTS)}
        for step in range(STEPS)
    }


@pytest.mark.parametrize("room", [16, 3])
@pytest.mark.parametrize("seed", range(3))
def test_each_step_trains_the_pairs_of_naive_one_step(seed, room):
    room = f"pipeline.prompts_per_replica={room}"
    seen = Seen("streamrl", seed, room)
    assert seen.simulation.controller.finished
    assert seen.pairs == expected(), f"seed {seed}"
    assert max(seen.simulation.controller.view.staleness_at_consumption) == 1


@pytest.mark.parametrize("seed", range(3))
def test_so_does_the_baseline(seed):
    assert Seen(str(FOLDER / "one-step.toml"), seed).pairs == expected(), f"seed {seed}"


@pytest.mark.parametrize("seed", range(3))
def test_the_synchronous_pipeline_begins_before_its_batch_is_complete(seed):
    seen = Seen(str(FOLDER / "sync.toml"), seed)
    assert seen.simulation.controller.finished
    assert list(seen.simulation.controller.view.staleness_at_consumption) == [0]
    assert seen.figures.plain()["first_part_lead_s"] > 0, f"seed {seed}"
    assert seen.pairs == {step + 1: {(prompt, step) for prompt, _ in expected()[step + 1]} for step in range(STEPS)}
