"""The load-balancing rule of StaleFlow, Appendix A.2, against a slow reference and against the plain rule."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.paramserver.layout import GlobalTensor, Layout, LinkCosts, reshard_plan
from tailrace.paramserver.layout.reshard_plan import Demand, first_holder, greedy

from .random_layouts import random_layout, random_tensors


def reference(plan, links):
    """Walks the plan's transfers in order and redoes every choice from the layouts alone."""
    load = dict.fromkeys(plan.source.shards, 0.0)
    choices = []
    for slice_, _, receiver in plan:
        holders = [
            rank
            for rank in sorted(plan.source.shards)
            if any(
                all(a <= c and d <= b for (a, b), (c, d) in zip(piece.box, slice_.box, strict=True))
                for _, piece in plan.source.shards[rank].pieces.get(slice_.tensor, ())
            )
        ]
        if receiver in holders:
            choices.append(receiver)
            continue
        best = holders[0]
        for rank in holders:
            if load[rank] < load[best]:
                best = rank
        load[best] += slice_.nbytes / links.bytes_per_s(best, receiver) + links.latency_s
        choices.append(best)
    return choices, load


def naive_busiest(plan, links):
    load = dict.fromkeys(plan.source.shards, 0.0)
    for slice_, _, receiver in plan:
        holders = [
            rank
            for rank in sorted(plan.source.shards)
            if any(
                all(a <= c and d <= b for (a, b), (c, d) in zip(piece.box, slice_.box, strict=True))
                for _, piece in plan.source.shards[rank].pieces.get(slice_.tensor, ())
            )
        ]
        if receiver not in holders:
            load[holders[0]] += slice_.nbytes / links.bytes_per_s(holders[0], receiver) + links.latency_s
    return max(load.values())


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_is_the_greedy_rule_and_never_worse_than_the_first_holder(seed, same_processes, uneven_links):
    rng = random.Random(seed)
    tensors = random_tensors(rng)
    source = random_layout(rng, tensors, "worker")
    target = random_layout(rng, tensors, "worker" if same_processes else "replica")
    between = {(a, b): rng.choice([1.0, 3.0, 50.0]) for a in source.shards for b in target.shards if rng.random() < 0.5}
    links = LinkCosts(10.0, rng.choice([0.0, 0.5]), between if uneven_links else {})
    plan = reshard_plan(source, target, links)
    assert plan.busiest_s <= naive_busiest(plan, links), f"seed {seed}"
    if plan.rule == "greedy":
        choices, load = reference(plan, links)
        assert [item.sender for item in plan] == choices, f"seed {seed}"
        assert plan.load_s == load
    again = reshard_plan(
        Layout(source.tensors[::-1], dict(reversed(source.shards.items()))),
        Layout(target.tensors[::-1], dict(reversed(target.shards.items()))),
        links,
    )
    assert list(again) == list(plan), f"seed {seed}"


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_the_rule_alone_on_random_demands(seed):
    rng = random.Random(seed)
    ranks = rng.randint(1, 6)
    demands = [
        Demand(
            rng.randint(1, 9),
            tuple(sorted(rng.sample(range(ranks), rng.randint(1, ranks)))),
            tuple(sorted(rng.sample(range(ranks), rng.randint(1, ranks)))),
        )
        for _ in range(rng.randint(0, 12))
    ]
    speed = {(a, b): rng.randint(1, 5) for a in range(ranks) for b in range(ranks)}
    found = greedy(demands, ranks, lambda a, b, n: n / speed[a, b])
    load, expected = [0.0] * ranks, []
    for nbytes, holders, receivers in demands:
        for receiver in receivers:
            sender = receiver if receiver in holders else sorted(holders, key=lambda rank: (load[rank], rank))[0]
            if sender != receiver:
                load[sender] += nbytes / speed[sender, receiver]
            expected.append(sender)
    assert list(found.senders) == expected
    assert found.load_s == load


def test_replicas_share_the_load_of_many_receivers():
    tensors = [GlobalTensor(f"w{index}", "bfloat16", (64, 8)) for index in range(4)]
    source = Layout.replicated(tensors, [f"dp{index}" for index in range(4)])
    target = Layout.replicated(tensors, [f"replica{index}" for index in range(8)])
    plan = reshard_plan(source, target, LinkCosts(1.0, 0.0))
    assert set(plan.load_s.values()) == {plan.bytes_moved / 4}
    assert plan.rule == "greedy"


def test_a_rank_that_holds_its_part_copies_it_for_free():
    tensors = [GlobalTensor("w", "float32", (8,))]
    source = Layout.of_boxes(tensors, {"a": {"w": [((0, 4),)]}, "b": {"w": [((4, 8),)]}})
    plan = reshard_plan(source, Layout.replicated(tensors, ["a", "b"]), LinkCosts(1.0, 0.0))
    assert sorted((item.sender, item.receiver, item.slice.nbytes) for item in plan) == [
        ("a", "a", 16), ("a", "b", 16), ("b", "a", 16), ("b", "b", 16),
    ]  # fmt: skip
    assert plan.load_s == {"a": 16.0, "b": 16.0}
    assert plan.receivers("a") == ["a", "b"]
    assert plan.senders("b") == ["a", "b"]


def test_where_greedy_ends_worse_the_plain_rule_is_used():
    # Two slices that both hold, then links so slow from one of them that its share costs more than all of it elsewhere.
    tensors = [GlobalTensor("v", "uint8", (10,)), GlobalTensor("w", "uint8", (10,))]
    source = Layout.replicated(tensors, ["near", "remote"])
    target = Layout.replicated(tensors, ["replica"])
    links = LinkCosts(10.0, 0.0, {("remote", "replica"): 0.1})
    assert greedy([Demand(10, (0, 1), (2,))] * 2, 3, lambda s, r, n: n / (0.1 if s == 1 else 10.0)).load_s[1] == 100.0
    plan = reshard_plan(source, target, links)
    assert plan.rule == "first holder"
    assert plan.busiest_s == 2.0
    assert {item.sender for item in plan} == {"near"}


def test_first_holder_is_what_it_says():
    found = first_holder([Demand(4, (1, 2), (0, 2, 3))], 4, lambda sender, receiver, nbytes: float(nbytes))
    assert list(found.senders) == [1, 2, 1]
    assert found.load_s == [0.0, 8.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [{"bandwidth": 0.0}, {"latency_s": -1.0}, {"between": {("a", "b"): -2.0}}])
def test_costs_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match="found"):
        LinkCosts(**bad)
