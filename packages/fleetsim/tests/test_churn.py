"""StaleFlow's strategies hand no work to and fro: what a replica is given runs there, and who waits for tools is not idle."""

import dataclasses
from collections import Counter

import pytest

from tailrace.contracts import Interrupt, Why
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.config.loading import validate

PIPELINE = {
    "admission": {"name": "bounded", "bound": 1},
    "routing": {"name": "marginal-throughput", "mu": 0.3},
    "sync": "when-useful",
    "relocation": "migration",
    "steps": 3,
    "prompts_per_step": 16,
    "samples_per_prompt": 8,
    "prompts_per_replica": 16,
}
TOOLS = {"calls": {"mean": 2.5, "max": 8}, "latency": {"median": 2.0, "sigma": 1.2, "cap": 60.0}}


def interrupted(tools):
    """Trajectories that were interrupted, by reason, where a replica may be given 128 and its engine runs 32."""
    workload = {"response": [{"median": 900, "sigma": 1.0}], "correlation": 0.3}
    content = {
        "app": "staleflow",
        "task": {"name": "long-chain-sum"},
        "pipeline": PIPELINE,
        "rollout": {"max_tokens": 8192},
        "fleet": {
            "model": "Qwen2.5-7B",
            "trainer": {"gpus": 8},
            "rollout": {"gpus": 2, "max_running": 32, "start_s": 5.0},
            "workload": {**workload, **({"environment": TOOLS} if tools else {})},
            "warm_up": 0,
            "steady": False,
        },
    }
    simulation = Simulation(dataclasses.replace(build_fleet(validate([("test", content)])), batches=None))
    simulation.run()
    counts = simulation.controller.view.counts
    assert counts.trained_trajectories == 3 * 16 * 8
    why = Counter()
    for _, _, commands in simulation.log.instants:
        for command in commands:
            if isinstance(command, Interrupt):
                why[command.reason.why] += len(command.trajectories)
    return why


@pytest.mark.parametrize("tools", [False, True])
def test_what_replicas_are_given_runs_there(tools):
    why = interrupted(tools)
    # Those that come back from their tools while the batch is full wait, and a few of them move on.
    assert why[Why.WAITING_TOO_LONG] <= (20 if tools else 0), why
    assert why[Why.LOW_THROUGHPUT] <= 64, why
