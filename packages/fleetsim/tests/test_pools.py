"""Unequal replicas: each has the costs of its own pool, and gets its weights over its own site's link."""

import dataclasses

import pytest

from tailrace import contracts as c
from tailrace.fleetsim import simulate
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet import build
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.config.loading import validate

FLEET = {
    "model": "Qwen2.5-7B",
    "trainer": {"gpus": 8},
    "rollout": [{"gpus": 8, "tensor_parallel": 4}, {"device": "H20", "gpus": 3, "site": "far"}],
    "sites": {"far": {}},
    "prices": {"H800": 2.85, "H20": 1.0},
}
CONTENT = {
    "app": "laminar",
    "rollout": {"max_tokens": 2048},
    "pipeline": {"steps": 6, "prompts_per_step": 20, "samples_per_prompt": 4, "prompts_per_replica": 4},
}


def config(**keys):
    return validate([("test", {**CONTENT, "fleet": {**FLEET, **keys}})])


def test_replicas_are_of_the_pools_in_their_order_and_those_beyond_of_the_first():
    fleet = build_fleet(config())
    pools = [fleet.pool(f"r{index}") for index in range(7)]
    assert [pool.rollout.device for pool in pools] == ["H800", "H800", "H20", "H20", "H20", "H800", "H800"]
    assert [pool.tp for pool in fleet.pools] == [4, 1]
    assert fleet.devices == {"H800": 16, "H20": 3}
    assert fleet.price_per_hour == pytest.approx(16 * 2.85 + 3)
    assert fleet.config.rollout.replicas == 5
    assert fleet.description.endswith("8 x H800 generate (2 replicas of 4), 3 x H20 generate at far (3 replicas)")


def test_each_replica_has_its_own_cache_speed_and_time_until_weights_arrive():
    simulation = Simulation(build_fleet(config()))
    simulation.run()
    assert simulation.controller.failure is None
    near, far = simulation.fleet.pools
    assert far.weights.broadcast_s - near.weights.broadcast_s == pytest.approx(15.2e9 / 10e9, rel=0.1)
    caches, published, pulled = {}, {}, {}
    for now, events, _ in simulation.log.instants:
        for event in events:
            if isinstance(event, c.Snapshot):
                caches.setdefault(event.replica, set()).add(event.kv_capacity_tokens)
            elif isinstance(event, c.Published):
                published[event.version] = now
            elif isinstance(event, c.Pulled) and event.version:
                pulled.setdefault(event.replica, []).append(now - published[event.version])
    own = {f"r{index}": {simulation.fleet.pool(f"r{index}").decode.kv_capacity_tokens} for index in range(5)}
    assert caches == own
    assert min(min(pulled[f"r{index}"]) for index in (2, 3, 4)) >= far.weights.broadcast_s
    assert min(min(pulled[f"r{index}"]) for index in (0, 1)) < far.weights.broadcast_s


def test_replicas_that_are_peers_pull_from_each_other_one_at_a_time_and_pay_a_hop():
    def run(mode):
        content = {
            **CONTENT,
            "relay": {"mode": mode},
            "fleet": {**FLEET, "rollout": {"gpus": 16, "tensor_parallel": 2}},
        }
        content["pipeline"] = {**CONTENT["pipeline"], "sync": "barrier"}
        simulation = Simulation(build_fleet(validate([("test", content)])))
        simulation.run()
        assert simulation.controller.failure is None
        begun, took, sources = {}, {}, {}
        for now, events, commands in simulation.log.instants:
            for event in events:
                if isinstance(event, c.Pulled):
                    took.setdefault(event.version, []).append((begun[event.replica], now))
            for command in commands:
                if isinstance(command, c.Pull):
                    begun[command.replica] = now
                    sources.setdefault(command.version, []).append(command.sources[0])
        return simulation.fleet.pools[0].weights, took, sources

    weights, took, sources = run("peer")
    for version, pulls in took.items():
        spans = [end - begin for begin, end in pulls]
        assert min(spans) == pytest.approx(weights.peer_s + weights.pull_s)
        assert sum(source.startswith("replica-") for source in sources[version]) >= 4
        for begin, _ in pulls:  # of 8 replicas and a relay, as many serve as have the version
            holders = 1 + sum(end <= begin for _, end in pulls)
            assert sum(first <= begin < end for first, end in pulls) <= holders
    alone, took, sources = run("relay")
    assert alone.peer_s == 0.0 < alone.broadcast_s
    assert weights.broadcast_s == 0.0
    assert {source.split("-")[0] for told in sources.values() for source in told} == {"relay"}


@pytest.mark.parametrize("how", ["store", "global"])
def test_peers_need_relays_to_begin_with(how):
    fleet = {"model": "Qwen2.5-7B", "trainer": {"gpus": 8}, "rollout": {"gpus": 8}, "weights": how}
    content = {**CONTENT, "relay": {"mode": "peer"}, "fleet": fleet}
    with pytest.raises(FleetError, match=f"found relay.mode = 'peer' with fleet.weights = '{how}', expected 'relays'"):
        build_fleet(validate([("test", content)]))


def test_a_site_receives_one_copy_and_a_share_of_it_where_only_that_crosses():
    whole = build_fleet(config()).pools[1].weights
    two = [*FLEET["rollout"], {"device": "H20", "gpus": 16, "site": "far"}]
    _, *far = build_fleet(config(rollout=two)).pools
    assert far[0].weights.broadcast_s == far[1].weights.broadcast_s  # one chain through all of its machines
    assert 0 < far[0].weights.broadcast_s - whole.broadcast_s < 0.3  # a second copy would take 1.5 s
    tenth = build_fleet(config(sites={"far": {"share": 0.1}})).pools[1].weights
    slow = build_fleet(config(sites={"far": {"bandwidth": 1e9}})).pools[1].weights
    assert tenth.broadcast_s < 0.2 * whole.broadcast_s
    assert slow.broadcast_s > 8 * whole.broadcast_s


def test_pools_that_are_alike_are_one_pool():
    same = {"gpus": 8}
    one = simulate(config(rollout={"gpus": 16}, sites={}), seed=2)
    two = simulate(config(rollout=[same, same], sites={}), seed=2)
    assert one.batches == two.batches  # in the log, commands name the pool
    assert (one.duration_s, one.handled_events) == (two.duration_s, two.handled_events)


def test_a_faster_pool_generates_more():
    slow = {"gpus": 2, "step_s": 0.1}
    simulation = Simulation(build_fleet(config(rollout=[{"gpus": 2}, slow], sites={}), seed=1))
    simulation.run()
    finished = {}
    for _, events, _ in simulation.log.instants:
        for event in events:
            if isinstance(event, c.Finished):
                finished[event.replica] = finished.get(event.replica, 0) + event.tokens
    assert min(finished["r0"], finished["r1"]) > 2 * max(finished["r2"], finished["r3"])


class OneMore(c.ProvisioningPolicy):
    """All replicas of the start, and one more of the second pool after the first step."""

    def plan(self, view):
        here = view.of("replica")
        if not here:
            return [c.StartReplica()] * 5
        return [c.StartReplica(pool="H20")] if view.progress.version == 1 and len(here) == 5 else []


def test_policies_see_pools_and_sites_and_start_replicas_of_the_pool_that_they_name(monkeypatch):
    spec_of = build.build_spec
    monkeypatch.setattr(
        build, "build_spec", lambda *a, **k: dataclasses.replace(spec_of(*a, **k), provisioning=OneMore())
    )
    simulation = Simulation(build_fleet(config()))
    simulation.run()
    assert simulation.controller.failure is None
    seen = {
        member.id: (member.pool, member.site, member.tp)
        for member in simulation.controller.provisioning.view().of("replica")
    }
    near, far = ("H800", "", 4), ("H20", "far", 1)
    assert seen == {"r0": near, "r1": near, "r2": far, "r3": far, "r4": far, "r5": far}
    assert simulation.models.replicas["r5"].pool.name == "H20"
    snapshots = [
        event.kv_capacity_tokens
        for _, events, _ in simulation.log.instants
        for event in events
        if isinstance(event, c.Snapshot) and event.replica == "r5"
    ]
    assert set(snapshots) == {simulation.fleet.pools[1].decode.kv_capacity_tokens}


def test_pools_have_the_names_of_their_devices_and_their_own_batches():
    two = {"device": "H20", "gpus": 2, "site": "far", "prompts_per_replica": 2}
    fleet = build_fleet(config(rollout=[*FLEET["rollout"], two, {"gpus": 1, "name": "spare"}]))
    assert [pool.name for pool in fleet.spec.pools] == ["H800", "H20", "H20-2", "spare"]
    assert [pool.replica_batch for pool in fleet.spec.pools] == [16, 16, 8, 16]
    assert not build_fleet(config(rollout={"gpus": 4}, sites={})).spec.pools


def test_each_pool_has_the_cost_model_of_its_own_devices():
    fleet = build_fleet(config())
    models = [pool.cost_model for pool in fleet.config.rollout.pools]
    for model, pool in zip(models, fleet.pools, strict=True):
        assert model.k1 == pytest.approx(pool.decode.per_token_s, rel=0.05)
    assert fleet.config.rollout.cost_model == models[0] != models[1]


def test_replicas_of_several_pools_are_not_resized():
    content = {
        **CONTENT,
        "app": "rollpacker",
        "task": {"name": "long-chain-sum"},
        "pipeline": {**CONTENT["pipeline"], "provisioning": "adaptive-tp"},
        "trainer": {"processes": 1, "cells": 1, "colocated": False},
        "fleet": FLEET,
    }
    with pytest.raises(FleetError, match="'adaptive-tp', which resizes replicas, and 2 pools"):
        build_fleet(validate([("test", content)]))
