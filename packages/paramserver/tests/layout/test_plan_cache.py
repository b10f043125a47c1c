import random

import pytest

from tailrace.paramserver.layout import GlobalTensor, Layout, LinkCosts, Planner

from .random_layouts import random_layout, random_tensors


def layouts(seed):
    rng = random.Random(seed)
    tensors = random_tensors(rng)
    return random_layout(rng, tensors, "worker"), random_layout(rng, tensors, "replica")


def test_the_second_call_does_not_plan_again():
    source, target = layouts(1)
    planner = Planner()
    first = planner.plan(source, target)
    assert planner.plan(source, target) is first
    # The same content in other objects, as after a restart of the trainer: also the same plan.
    assert planner.plan(*(Layout(layout.tensors, dict(layout.shards)) for layout in (source, target))) is first
    assert planner.made == 1
    assert planner.plan(target, source) is not first
    assert planner.made == 2


def test_the_plan_unused_for_longest_goes_first():
    pairs = [layouts(seed) for seed in range(3)]
    planner = Planner(capacity=2)
    kept = planner.plan(*pairs[0])
    planner.plan(*pairs[1])
    assert planner.plan(*pairs[0]) is kept
    planner.plan(*pairs[2])
    assert planner.plan(*pairs[0]) is kept
    assert planner.made == 3
    planner.plan(*pairs[1])
    assert planner.made == 4
    with pytest.raises(ValueError, match="capacity"):
        Planner(capacity=0)


def test_new_estimates_of_the_links_make_new_plans():
    tensors = [GlobalTensor("v", "uint8", (10,)), GlobalTensor("w", "uint8", (10,))]
    source, target = Layout.replicated(tensors, ["near", "remote"]), Layout.replicated(tensors, ["replica"])
    planner = Planner(LinkCosts(10.0, 0.0))
    assert {item.sender for item in planner.plan(source, target)} == {"near", "remote"}
    planner.profiled(LinkCosts(10.0, 0.0))
    planner.plan(source, target)
    assert planner.made == 1
    planner.profiled(LinkCosts(10.0, 0.0, {("remote", "replica"): 0.1}))
    assert {item.sender for item in planner.plan(source, target)} == {"near"}
    assert planner.made == 2
