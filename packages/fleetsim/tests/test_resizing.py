"""A simulated replica that is resized: another KV cache and speed, its own seconds to start, and totals of both sizes."""

import dataclasses

from tailrace import contracts as c
from tailrace.fleetsim.fleet import build
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.config.models import RunConfig
from tailrace.repack import to_size

CONFIG = {
    "app": "laminar",
    "task": {"name": "long-chain-sum"},
    "fleet": {
        "model": "Qwen2.5-7B",
        "trainer": {"gpus": 8},
        "rollout": {"gpus": 4, "start_s": 10.0, "resize_s": 40.0},
        "steady": False,
    },
    "rollout": {"max_tokens": 2048},
    "pipeline": {"steps": 12, "prompts_per_step": 16, "samples_per_prompt": 4},
}


class Once(c.ProvisioningPolicy):
    """Four replicas of one device; two of two after the first step, and four again after the seventh."""

    def plan(self, view):
        staying = [member for member in view.of("replica") if member.health is not c.Health.STOPPING]
        size = 2 if view.progress.version in range(1, 7) else 1
        if not staying:
            return [c.StartReplica()] * 4
        return [] if all(m.tp == size for m in staying) else to_size(staying, size, 4, c.Reason(c.Why.PLANNED))


def test_costs_capacity_and_start_are_those_of_its_size(monkeypatch):
    spec_of = build.build_spec
    monkeypatch.setattr(build, "build_spec", lambda *a, **k: dataclasses.replace(spec_of(*a, **k), provisioning=Once()))
    fleet = build_fleet(RunConfig.model_validate(CONFIG))
    (pool,) = fleet.pools
    assert set(pool.sized) == {2, 4}
    capacity = {size: pool.costs(size)[0].kv_capacity_tokens for size in (1, 2)}
    assert capacity[2] > 2 * capacity[1]  # the weights are there once for both devices
    simulation = Simulation(fleet)
    simulation.run()
    assert simulation.controller.failure is None
    assert simulation.controller.view.step == 12
    sizes, asked, seen = {}, {}, set()
    for now, events, commands in simulation.log.instants:
        for event in events:
            if isinstance(event, c.Up) and event.id in asked:
                at, takes_s = asked.pop(event.id)
                assert abs(now - at - takes_s) < 1e-6
            elif isinstance(event, c.Snapshot) and event.replica not in asked:
                size = sizes[event.replica]
                seen.add(size)
                assert event.kv_capacity_tokens == capacity[size]
        for one in commands:
            if isinstance(one, c.Resize):
                sizes[one.replica], asked[one.replica] = one.tp, (now, 40.0)
            elif isinstance(one, c.Start) and one.role == "replica":
                sizes[one.id], asked[one.id] = one.tp or 1, (now, 10.0)
    assert seen == {1, 2}
    totals = simulation.world.recorder.totals(simulation.now)
    assert totals.generated_tokens >= simulation.controller.view.counts.trained_tokens  # of engines of both sizes


def test_the_profile_finds_a_larger_replica_best_for_few_long_responses():
    def first_sizes(max_tokens, prompts):
        config = {
            **CONFIG,
            "rollout": {"max_tokens": max_tokens},
            "fleet": {**CONFIG["fleet"], "workload": {"response": {"median": max_tokens / 3, "sigma": 0.5}}},
            "pipeline": {**CONFIG["pipeline"], "prompts_per_step": prompts, "provisioning": {"name": "adaptive-tp"}},
        }
        policy = build_fleet(RunConfig.model_validate(config)).spec.provisioning
        assert (policy.heads, policy.devices_per_machine, policy.smallest, policy.count, policy.tp) == (28, 4, 1, 4, 1)
        assert policy.short == policy.long
        return policy.short

    assert first_sizes(1024, 1024) == 1
    assert first_sizes(32_768, 8) > 1
