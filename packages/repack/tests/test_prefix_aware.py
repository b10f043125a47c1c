"""Routing that sees prefix caches: its decisions beside a slow reference, and its limits."""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.contracts import Cycle, Progress, ReplicaView, TrajectoryView, Why
from tailrace.repack import LeastLoaded, LoadError, PrefixAware
from tailrace.repack.sync import WhenUseful
from tailrace.repack.testing import SlotAdmission, check_routing_policy, check_sync_policy
from tailrace.repack.testing.cycles import random_cycle


@dataclasses.dataclass(frozen=True)
class Known:
    """What caches have, by trajectory and replica."""

    tokens: dict

    def __call__(self, trajectory):
        return self.tokens.get(trajectory.trajectory, {})


def with_prefixes(cycle, rng):
    """The cycle, where caches have some tokens of some trajectories of the pool, also caches of replicas that are gone."""
    names = [view.replica for view in cycle.replicas] + ["gone"]
    known = {
        name: {rng.choice(names): rng.choice([0, 1, 30, 500, view.tokens]) for _ in range(rng.choice([0, 1, 1, 3]))}
        for queue in cycle.pool.values()
        for name, view in queue.items()
    }
    return dataclasses.replace(cycle, prefixes=Known(known))


def routed_slowly(place_tokens, cycle):
    """The same decisions by trying every replica for every trajectory. Returns trajectory, replica, in order."""
    serving = {view.replica: view for view in cycle.replicas if view.version is not None and not view.pulling}
    held = {name: view.in_flight - view.in_environment for name, view in serving.items()}
    largest = max((view.capacity for view in serving.values()), default=1)
    placed = []

    def share(name):
        return held[name] / max(1, serving[name].capacity)

    def room(name, count):
        view = serving[name]
        return view.open and (held[name] + count <= view.capacity or held[name] == 0)

    def order(name):
        return share(name), serving[name].kv, name_order.index(name)

    name_order = sorted(serving)

    def cheapest(names, cached):
        return min(names, key=lambda name: (place_tokens * largest * share(name) - cached.get(name, 0), order(name)))

    def place(trajectory, name):
        held[name] += 1
        placed.append((trajectory, name))

    for version in sorted(level for level in cycle.pool if level is not None):
        for view in cycle.pool[version].values():
            may = [n for n, r in serving.items() if (r.version == version if view.exact else r.version >= version)]
            if may:
                place(view.trajectory, cheapest(may, cycle.prefixes(view)))
    groups, admits = {}, cycle.admits.fork()
    for view in cycle.pool.get(None, {}).values():
        groups.setdefault(view.group, []).append(view)
    for group, members in groups.items():
        may = [n for n, r in serving.items() if admits.allows(r.version) and room(n, len(members))]
        if not may:
            continue
        first = min(may, key=order)
        version = serving[first].version
        admits.take(group, version)
        place(members[0].trajectory, first)
        mine = [first]
        for view in members[1:]:
            free = [n for n, r in serving.items() if r.version == version and room(n, 1)]
            chosen = cheapest(free, dict.fromkeys(mine, members[0].prompt_tokens)) if free else first
            place(view.trajectory, chosen)
            mine.append(chosen)
    return placed


def where(placements):
    return [(placement.trajectory, placement.replica) for placement in placements]


@pytest.mark.parametrize("place_tokens", [0.0, 1.0, 40.0, 700.0, 1e12])
def test_it_decides_as_trying_every_replica_does(place_tokens):
    split = saved = 0
    for seed in range(400):
        rng = random.Random(seed)
        cycle = with_prefixes(random_cycle(rng), rng)
        placements = list(PrefixAware(place_tokens).route(cycle))
        assert where(placements) == routed_slowly(place_tokens, cycle), f"seed {seed}"
        split += sum(placement.reason.why is Why.CROWDED for placement in placements)
        saved += sum(placement.reason.why is Why.CACHED for placement in placements)
    assert saved
    assert split or place_tokens == 0


@pytest.mark.parametrize("place_tokens", [0.0, 50.0, 512.0])
def test_it_keeps_the_rules_of_its_axis(place_tokens):
    assert check_routing_policy(PrefixAware(place_tokens)) > 300
    assert check_sync_policy(WhenUseful(), routing=PrefixAware(place_tokens)) > 0


def replica(name, held, *, capacity=32, version=1, **changes):
    return ReplicaView(name, version, False, held, capacity, 0.0, 0.0, 0.0, 0, True, **changes)


def back(name="0.0", tokens=1_000, **changes):
    return TrajectoryView(name, 0, 1, tokens, True, prompt_tokens=100, **changes)


def cycle_of(replicas, views, prefixes):
    queues = {}
    for view in views:
        queues.setdefault(view.version, {})[view.trajectory] = view
    progress = Progress(1, 1, 0, 0, 0, 0, 0, 4, 100)
    return Cycle(replicas, queues, SlotAdmission({0: 100}), progress, LeastLoaded(), prefixes=Known(prefixes))


@given(held=st.integers(0, 31), other=st.integers(0, 31), saved=st.integers(0, 2_000), worth=st.floats(0, 500))
@settings(max_examples=300, derandomize=True)
def test_a_trajectory_comes_back_exactly_where_that_saves_more_than_it_costs(held, other, saved, worth):
    cycle = cycle_of([replica("home", held), replica("other", other)], [back(tokens=2_000)], {"0.0": {"home": saved}})
    (placement,) = PrefixAware(worth).route(cycle)
    costs = worth * 32 * (held / 32 - other / 32)
    if costs != saved:
        assert (placement.replica == "home") == (costs < saved or (costs == saved and held <= other))
    if saved:
        kind = Why.CACHED if placement.replica == "home" else Why.CROWDED
        assert placement.reason.why is kind
        assert placement.reason.who == ("" if kind is Why.CACHED else "home")
        assert placement.reason.numbers == {"saved": saved, "costs": pytest.approx(max(0.0, costs))}


def test_it_is_sticky_at_no_worth_and_least_loaded_at_any():
    views = [back(f"0.{n}") for n in range(6)]
    cycle = cycle_of([replica("home", 9), replica("other", 3)], views, {view.trajectory: {"home": 1} for view in views})
    assert {name for _, name in where(PrefixAware(0.0).route(cycle))} == {"home"}
    assert where(PrefixAware(1e9).route(cycle)) == where(LeastLoaded().route(cycle))


def starts(prompt, count=8):
    return [TrajectoryView(f"5.{n}", 5, None, prompt, prompt_tokens=prompt) for n in range(count)]


@pytest.mark.parametrize(("prompt", "on_each"), [(10_000, [8]), (0, [4, 4]), (1_000, [8]), (500, [5, 3])])
def test_a_group_stays_together_as_far_as_its_prompt_is_worth_it(prompt, on_each):
    replicas = [replica("a", 0), replica("b", 0), replica("full", 32)]
    placements = PrefixAware(100.0).route(cycle_of(replicas, starts(prompt), {}))
    found = [name for _, name in where(placements)]
    assert sorted((found.count(name) for name in set(found)), reverse=True) == on_each
    assert "full" not in found


def test_a_replica_that_has_no_room_gets_nothing_of_a_group():
    replicas = [replica("a", 0, capacity=8), replica("b", 3, capacity=4), replica("shut", 0, capacity=8, open=False)]
    found = [name for _, name in where(PrefixAware(1e6).route(cycle_of(replicas, starts(0), {})))]
    assert (found.count("a"), found.count("b")) == (7, 1)
    one = [replica("small", 0, capacity=4)]  # a group that is larger than any replica starts on an empty one
    assert [name for _, name in where(PrefixAware().route(cycle_of(one, starts(10), {})))] == ["small"] * 8


@pytest.mark.parametrize("worth", [-1.0, float("nan"), float("inf")])
def test_a_worth_that_is_none_is_refused(worth):
    with pytest.raises(LoadError, match=r"^found place_tokens=.*, expected a finite number of at least 0$"):
        PrefixAware(worth)
