"""Where the time of each step of a simulation goes, also where the trainer falls back and makes one again."""

from __future__ import annotations

import pytest

from tailrace import contracts as c
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.fleetsim.reproduce.steps import StepWatcher
from tailrace.pipeline.config.loading import validate

STEPS = 5


class Falls:
    """Hears of the trainer's ends and steps."""

    def __init__(self):
        self.stepped, self.fell = [], 0

    def observe(self, now, events, commands, run):
        self.stepped += [now for event in events if isinstance(event, c.Stepped)]
        self.fell += sum(isinstance(command, c.Restart) and command.role == "trainer" for command in commands)

    def tick(self, now, executor):
        pass


def _watched(training, *faults, checkpoint_every=1):
    config = {
        "faults": list(faults),
        "pipeline": {
            "steps": STEPS, "prompts_per_step": 16, "samples_per_prompt": 2,
            "training": training, "admission": "one-step", "sync": "barrier",
        },
        "checkpoint": {"every": checkpoint_every},
        "rollout": {"max_tokens": 2_000},
        "fleet": {
            "model": "Qwen2.5-7B", "steady": False, "rollout": {"gpus": 2}, "trainer": {"gpus": 2},
            "workload": {"prompt": 256, "response": 800},
        },
    }  # fmt: skip
    fleet = build_fleet(validate([("test", config)]), seed=1)
    watcher, falls = StepWatcher(), Falls()
    watcher.simulation = simulation = Simulation(fleet, observers=(watcher, falls), keep_events=False)
    simulation.run()
    return watcher.steps, falls


@pytest.mark.parametrize("checkpoint_every", [1, 3])
@pytest.mark.parametrize(
    "training", [{"name": "full-batch"}, {"name": "streamed", "groups": 3}, {"name": "mini-batch", "parts": 2}]
)
def test_a_step_that_is_made_again_counts_once_and_has_the_time_of_both(training, checkpoint_every):
    plain, undisturbed = _watched(training, checkpoint_every=checkpoint_every)
    steps, falls = _watched(training, "trainer@step4:optimizer", checkpoint_every=checkpoint_every)
    assert (undisturbed.fell, falls.fell) == (0, 1)
    assert len(plain) == len(steps) == STEPS
    assert sum(one.step_s for one in plain) == pytest.approx(undisturbed.stepped[-1])
    assert [one.longest for one in steps] == [one.longest for one in plain]
    assert plain[0].rollout_s > 0
    assert sum(one.step_s for one in steps) > sum(one.step_s for one in plain)
