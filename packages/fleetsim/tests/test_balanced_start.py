"""A fleet that begins with the replicas that both stages need, of the size that is best (StreamRL, Algorithm 1)."""

import pytest

from tailrace import contracts as c
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.fleet.stage_times import StageTimes
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.config.loading import merge, validate

CONTENT = {
    "app": "laminar",
    "fleet": {
        "model": "Qwen2.5-32B",
        "fit_stages": True,
        "steady": False,
        "trainer": {"gpus": 16},
        "rollout": {"gpus": 16, "tensor_parallel": 2, "start_s": 10.0},
        "workload": {"response": {"median": 1500, "sigma": 0.9}, "correlation": 0.3},
    },
    "rollout": {"max_tokens": 20_000},  # more than the KV cache of one device has room for beside the weights
    "pipeline": {
        "steps": 3,
        "prompts_per_step": 64,
        "samples_per_prompt": 4,
        "prompts_per_replica": 64,
        "admission": "one-step",
        "provisioning": "balanced",
    },
}


def config(**keys):
    return validate([("test", merge(CONTENT, keys))])


def begins(content):
    return build_fleet(content).spec.provisioning.begins


@pytest.mark.parametrize("prompts", [32, 512])
@pytest.mark.parametrize("data_s", [0.0, 200.0, 400.0, 600.0])
@pytest.mark.cases(3)
def test_engines_alone_take_as_long_as_was_predicted_and_no_other_size_is_faster(prompts, data_s):
    shape = {"prompts_per_step": prompts, "prompts_per_replica": prompts}
    content = config(fleet={"trainer": {"data_s": data_s}}, pipeline=shape)
    policy, times = build_fleet(content).spec.provisioning, StageTimes(content)
    found = policy.begins
    assert [row[0] for row in policy.replica_costs] == [2, 4, 8]  # a replica of one device does not hold a response
    assert policy.train_s == times.train_s(16)
    alone = times.generation(found.devices)
    assert found.seconds == pytest.approx(alone.seconds, rel=0.15)
    assert found.size == alone.tensor_parallel
    fewer = [times.generation(count).seconds for count in range(2, found.devices, 2)]
    assert not fewer or min(fewer) > 0.85 * min(max(policy.train_s, found.seconds), alone.seconds)


def test_the_sizes_differ_with_what_training_leaves_time_for():
    kinds = {
        begins(config(pipeline={"prompts_per_step": 512}, fleet={"trainer": {"data_s": s}})).size for s in (0, 600)
    }
    assert kinds == {4, 8}


def test_such_a_run_starts_them_says_why_and_loses_nothing():
    fleet = build_fleet(config(fleet={"trainer": {"data_s": 400.0}}))
    simulation = Simulation(fleet)
    simulation.run()
    run, policy = simulation.controller.view, fleet.spec.provisioning
    assert (run.failure, run.step) == (None, 3)
    starts = [
        one
        for _, _, commands in simulation.log.instants
        for one in commands
        if isinstance(one, c.Start) and one.role == "replica"
    ]
    first = [one for one in starts if one.reason.why is c.Why.ALLOCATED]
    assert len(first) == policy.begins.replicas
    assert {one.tp or 2 for one in first} == {policy.begins.size}
    assert first[0].reason.numbers["generation_s"] == pytest.approx(policy.begins.seconds)
    assert run.counts.trained == 3 * 64
    assert run.contradictions == 0


def test_what_the_configuration_says_itself_is_kept():
    provisioning = {"name": "balanced", "devices": 4, "train_s": 1.0}
    policy = build_fleet(config(pipeline={"provisioning": provisioning})).spec.provisioning
    assert (policy.train_s, policy.begins.devices) == (1.0, 4)


def test_other_provisioning_is_refused():
    with pytest.raises(FleetError, match="found fit_stages = true with provisioning 'static' and 1 pools"):
        build_fleet(config(pipeline={"provisioning": "static"}))
