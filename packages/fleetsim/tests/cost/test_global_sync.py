"""The baselines' global synchronisation: the ring against a walk over its hops, and Laminar's waiting times beside it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.fleetsim.cost import WeightCost
from tailrace.fleetsim.cost.weights import RING_CHANNELS, RING_CHUNK_BYTES, RING_HOP_S, collective_broadcast_s
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware import Link, Node, device, model

SIZES = {"Qwen2.5-7B": 1, "Qwen2.5-32B": 4, "Qwen2.5-72B": 8}


def waiting(name, gpus):
    """(best, global) waiting of a rollout: half of the devices train."""
    cost = WeightCost.of(model(name), device("H800"), SIZES[name])
    return cost.pull_s(), cost.global_sync_s(gpus // 2, gpus // 2)


def test_laminar_s_waiting_times():
    # Laminar, section 8.3: relays cut waiting by up to 47 % at best on 64 to 1,024 GPUs; within 10 points.
    settings = [(name, gpus) for name in ("Qwen2.5-32B", "Qwen2.5-72B") for gpus in (64, 128, 256, 512, 1024)]
    cut = [1 - best / together for best, together in (waiting(*one) for one in settings)]
    assert max(cut) == pytest.approx(0.47, abs=0.10)
    assert min(cut) > 0


@pytest.mark.parametrize("name", SIZES)
def test_relays_win_more_on_larger_fleets(name):
    cuts = [1 - waiting(name, gpus)[0] / waiting(name, gpus)[1] for gpus in (64, 128, 256, 512, 1024)]
    assert cuts == sorted(cuts)


def test_two_replicas_by_hand():
    # One device each on two nodes, 1 byte per second and NIC: shard of 100, one call, chunks of 100 at most.
    node = Node(1, 1, Link("NVLink", 10.0), Link("RDMA", 1.0), Link("PCIe", 1.0))
    # Two hops of the network: 2 x latency, and the whole shard once more.
    assert collective_broadcast_s(100, 2, 1, 1, node) == pytest.approx(100 + 2 * RING_HOP_S + 100)
    # On one node the second hop is NVLink.
    assert collective_broadcast_s(100, 2, 2, 1, node) == pytest.approx(100 + RING_HOP_S + 10)
    assert collective_broadcast_s(100, 1, 1, 1, node) == pytest.approx(100 + RING_HOP_S)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 5), st.integers(1, 40))
def test_equals_a_walk_over_the_ring(replicas, replicas_per_node, calls, chunks):
    chunk_bytes = RING_CHANNELS * RING_CHUNK_BYTES
    shard_bytes = calls * chunks * chunk_bytes
    node = Node(1, 1, Link("NVLink", 2e11, 3e-6), Link("RDMA", 4e10), Link("PCIe", 1e10))
    # Each hop forwards a chunk after it has it and its link is free; the latency is on the way, not on the link.
    hops = [(node.rdma.bandwidth, RING_HOP_S)] * -(-replicas // replicas_per_node)
    hops += [(node.nvlink.bandwidth, node.nvlink.startup_s)] * (replicas - len(hops))
    free = [0.0] * len(hops)
    last = 0.0
    for _ in range(chunks):
        there = 0.0
        for index, (bandwidth, latency_s) in enumerate(hops):
            free[index] = max(there, free[index]) + chunk_bytes / bandwidth
            there = free[index] + latency_s
        last = there
    found = collective_broadcast_s(shard_bytes, replicas, replicas_per_node, calls, node)
    assert found == pytest.approx(calls * last)


def test_few_trainer_devices_are_the_bottleneck():
    cost = WeightCost.of(model("Qwen2.5-72B"), device("H800"), 8)
    assert cost.global_sync_s(8, 64) == cost.global_sync_s(640, 64)
    assert cost.global_sync_s(4, 64) > 1.8 * cost.global_sync_s(8, 64)


@pytest.mark.parametrize(("trainer", "rollout"), [(0, 8), (8, 7)])
def test_impossible_splits(trainer, rollout):
    with pytest.raises(FleetError, match=r"expected at least 1 and 8 \(one replica\)"):
        WeightCost.of(model("Qwen2.5-72B"), device("H800"), 8).global_sync_s(trainer, rollout)
