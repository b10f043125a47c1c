"""scale-down beside a plain reference, and by hand: when it lends, what it lends, and when all returns."""

import math
import random
from dataclasses import replace

import pytest

from tailrace import contracts as c
from tailrace.repack import LoadError, ScaleDown
from tailrace.repack.scale_down import half_of_cells, projected_tokens

LENGTHS = (10,) * 90 + (100,) * 10


def load(name, *cells, running=2, kv=0.01, capacity_tokens=1_000, places=16, **changes):
    view = c.ReplicaView(
        name, 3, False, running, places, kv, kv, kv, 0, True, running, capacity_tokens, True, False, {}, 0, cells
    )
    return replace(view, **changes)


def member(name, health=c.Health.UP):
    return c.MemberView("replica", name, health)


def view(loads, *, generated=30, samples=100, lent=(), members=None, lengths=LENGTHS):
    progress = c.Progress(3, 3, 0, 0, 0, 0, 0, 4, 100)
    names = members if members is not None else [member(each.replica) for each in loads] + [member(n) for n in lent]
    round_ = None if generated is None else c.RoundView(7, "long", 50, 0, samples, generated)
    return c.FleetView({}, names, progress, round=round_, loads=tuple(loads), lengths=lengths, lent=tuple(lent))


def names(actions, kind):
    return [action.replica for action in actions if isinstance(action, kind)]


def test_the_milestones_are_the_paper_s():
    assert ScaleDown().round_milestones() == (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
    assert ScaleDown(first=0.3, last=0.3).round_milestones() == (0.3,)


def test_it_lends_half_of_the_cells_whole_and_those_with_the_least_work():
    loads = [load("r0", 0, running=3), load("r1", 1, running=1), load("r2", 0, running=2), load("r3", 1, running=3)]
    actions = ScaleDown(count=4).plan(view(loads))
    assert names(actions, c.LendReplica) == ["r1", "r3"]
    assert actions[0].reason.numbers["share"] == 0.3


@pytest.mark.parametrize("generated", [None, 0, 19, 56, 100])
def test_it_lends_only_between_the_first_and_the_last_milestone(generated):
    assert ScaleDown().plan(view([load("r0", 0), load("r1", 1)], generated=generated)) == ()


def test_it_lends_only_what_fits_into_the_cache_that_remains():
    fits = [load("r0", 0, running=4, kv=0.08), load("r1", 1, running=4, kv=0.08)]
    # 20 tokens each so far: those that got so far became 100 long. 8 x 100 tokens fit into 1,000.
    assert projected_tokens(fits, LENGTHS, 200) == 800
    assert names(ScaleDown().plan(view(fits)), c.LendReplica) == ["r0"]
    full = [replace(each, in_flight=6, kv=0.12) for each in fits]
    assert projected_tokens(full, LENGTHS, 200) == 1_200
    assert ScaleDown().plan(view(full)) == ()
    assert (
        ScaleDown().plan(view([load("r0", 0, places=2), load("r1", 1, places=3)])) == ()
    )  # no place in a decode batch


@pytest.mark.parametrize(
    "change",
    [
        {"fresh": False}, {"pulling": True}, {"pinned": True}, {"version": 2}, {"version": None}, {"cells": ()},
        {"kv_capacity_tokens": 0},
    ],
)  # fmt: skip
def test_it_lends_nothing_while_it_does_not_know_enough(change):
    assert ScaleDown().plan(view([load("r0", 0), replace(load("r1", 1), **change)])) == ()


def test_a_replica_of_two_devices_frees_both_of_its_cells():
    loads = [load("r0", 0, 1, running=3), load("r2", 2, 3, running=1)]
    assert names(ScaleDown().plan(view(loads)), c.LendReplica) == ["r2"]
    assert ScaleDown().plan(view([load("r0", 0, 1)])) == ()  # the half of them is not whole


def test_nothing_is_lent_while_a_replica_is_not_up():
    """Its devices could not be used, and it would all be returned at once."""
    loads = [load("r0", 0), load("r1", 1)]
    starting = [member("r0"), member("r1"), member("r2", c.Health.STARTING)]
    assert ScaleDown().plan(view(loads, members=starting)) == ()
    stopping = [member("r0"), member("r1"), member("r2", c.Health.STOPPING)]
    assert names(ScaleDown().plan(view(loads, members=stopping)), c.LendReplica) == ["r0"]


def parts_of(loads):
    """Cells that change hands together, found by asking for each cell over and over whom it meets."""
    found = set()
    for cell in {cell for each in loads for cell in each.cells}:
        part = {cell}
        for _ in loads:
            part |= {near for each in loads if part & set(each.cells) for near in each.cells}
        found.add(frozenset(part))
    return found


def test_the_half_is_whole_and_has_the_least_work(seeds):
    for seed in seeds(300):
        draw = random.Random(seed)
        size, cells = draw.choice([1, 2, 4]), draw.choice([1, 2, 3, 4, 6, 8])
        devices = [
            tuple(sorted({(first + place) // draw.choice([1, size]) % cells for place in range(size)}))
            for first in range(0, 12, size)
        ]
        loads = [load(f"r{n}", *on, running=draw.randint(0, 4)) for n, on in enumerate(devices[: draw.randint(1, 6)])]
        judged = draw.choice([None, 0, 1])  # the cell of a judge
        loads = [replace(each, kept=judged in each.cells) for each in loads]
        half = half_of_cells(loads)
        parts, every = parts_of(loads), {cell for each in loads for cell in each.cells}
        assert len(half) <= len(every) / 2, f"seed {seed}"
        assert judged not in half, f"seed {seed}"
        for each in loads:
            assert half.issuperset(each.cells) or half.isdisjoint(each.cells), f"seed {seed}: {each.replica} is divided"
        work = {part: sum(each.in_flight for each in loads if part >= set(each.cells)) for part in parts}
        lent = [part for part in parts if part <= half]
        for kept in (part for part in parts - set(lent) if judged not in part):
            lighter = sum(len(part) for part in lent if (work[part], min(part)) < (work[kept], min(kept)))
            assert lighter + len(kept) > len(every) // 2, f"seed {seed}: there was room for {set(kept)}"


def test_a_replica_beside_a_judge_is_kept_however_little_it_has_to_do():
    loads = [load("r0", 0, running=0, kept=True), load("r1", 1, running=9), load("r2", 0, running=0, kept=True)]
    assert names(ScaleDown(count=3).plan(view([*loads, load("r3", 1, running=9)])), c.LendReplica) == ["r1", "r3"]


def test_one_cell_is_never_lent():
    assert ScaleDown().plan(view([load("r0", 0), load("r1", 0)])) == ()


def test_all_returns_at_the_round_s_end_and_when_a_kept_replica_goes_down():
    policy, kept = ScaleDown(), [load("r0", 0)]
    assert policy.plan(view(kept, lent=["r1"], generated=80)) == ()
    assert names(policy.plan(view(kept, lent=["r1"], generated=None)), c.ReturnReplica) == ["r1"]
    assert names(policy.plan(view(kept, lent=["r1"], generated=0)), c.ReturnReplica) == ["r1"]
    members = [member("r0", c.Health.STARTING), member("r1")]
    assert names(policy.plan(view([], lent=["r1"], generated=80, members=members)), c.ReturnReplica) == ["r1"]


def test_a_length_that_nothing_reached_is_taken_for_the_longest():
    assert projected_tokens([load("r0", 0, running=1, kv=0.5)], LENGTHS, 600) == 600
    assert projected_tokens([load("r0", 0, running=0)], LENGTHS, 600) == 0
    assert projected_tokens([load("r0", 0, capacity_tokens=0)], LENGTHS, 600) == math.inf


def test_the_projection_agrees_with_a_plain_sum_over_trajectories(seeds):
    for seed in seeds(200):
        draw = random.Random(seed)
        lengths = [draw.randint(1, 50) for _ in range(draw.randint(0, 40))]
        loads = [
            load(f"r{place}", place, running=draw.randint(0, 5), kv=draw.random(), capacity_tokens=draw.randint(1, 200))
            for place in range(3)
        ]
        expected = 0.0
        for each in loads:
            for _ in range(each.in_flight):
                now = each.kv * each.kv_capacity_tokens / each.in_flight
                longer = [length for length in lengths if length > now]
                expected += sum(longer) / len(longer) if longer else max(60, now)
        assert projected_tokens(loads, lengths, 60) == pytest.approx(expected), f"seed {seed}"


@pytest.mark.parametrize(
    "options", [{"count": 0}, {"max_tokens": 0}, {"first": 0.0}, {"last": 0.1}, {"every": 0.0}, {"remembers": -1}]
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(LoadError, match="expected"):
        ScaleDown(**options)


def ends_s(left_s, share, gradients_s, lend_s, return_s, *, lends, tick_s=0.01):
    """When the next round can begin, played in ticks: gradients, and the replicas' return."""
    now, done = 0.0, 0.0
    while now < left_s:
        if lends and now >= lend_s:
            done = min(gradients_s, done + share * tick_s)
        now += tick_s
    while done < gradients_s:
        done, now = done + tick_s, now + tick_s
    return now + (return_s if lends else 0.0)


def test_a_loan_that_costs_more_than_it_brings_is_not_made(seeds):
    """Beside both futures played in ticks; those that end within a few ticks of each other are not compared."""
    made = set()
    for seed in seeds(150):
        draw = random.Random(seed)
        cells = draw.choice([2, 4])
        loads = [load(f"r{n}", n) for n in range(cells)]
        lasts_s, passed_s, gradients_s = draw.uniform(0.5, 9), draw.uniform(0, 4), draw.choice([0.3, 2.0, 9.0])
        lend_s, return_s = draw.choice([0.0, 0.2, 2.0]), draw.choice([0.0, 0.3, 3.0])
        left_s = lasts_s - passed_s
        if left_s <= 0:
            continue
        without_s, with_s = (ends_s(left_s, 0.5, gradients_s, lend_s, return_s, lends=lends) for lends in (False, True))
        if abs(with_s - without_s) < 0.05:
            continue
        seen = replace(
            view(loads),
            rounds=(c.RoundRecord(0, "short", 4, 1, 0, 99.0), c.RoundRecord(1, "long", 4, 1, 0, lasts_s)),
            round_s=passed_s,
            gradients_s=gradients_s,
            loans=(c.LoanRecord(0, 50.0, 50.0), c.LoanRecord(2, lend_s, return_s)),
        )
        actions = ScaleDown(cells, remembers=2).plan(seen)  # the first loan is too long ago
        assert bool(actions) == (with_s < without_s), f"seed {seed}: {with_s} with and {without_s} without"
        made.add(bool(actions))
        for action in actions:
            numbers = action.reason.numbers
            assert numbers["brings_s"] - numbers["costs_s"] == pytest.approx(without_s - with_s, abs=0.05), (
                f"seed {seed}"
            )
        assert ScaleDown(cells, remembers=0).plan(seen), f"seed {seed}: it was to charge nothing"
    assert made == {False, True}


@pytest.mark.parametrize(
    "unknown",
    [{"rounds": ()}, {"gradients_s": 0.0}, {"loans": ()}, {"round_s": 5.0}, {"loans": (c.LoanRecord(-9, 9.0, 9.0),)}],
)
def test_a_loan_is_made_while_it_is_not_known_what_it_brings(unknown):
    """So the first one, and one after `remembers` steps without any, shows what it takes."""
    dear = {
        "rounds": (c.RoundRecord(1, "long", 4, 1, 0, 4.0),), "round_s": 1.0, "gradients_s": 2.0,
        "loans": (c.LoanRecord(3, 1.0, 9.0),),
    }  # fmt: skip
    seen = view([load("r0", 0), load("r1", 1)])
    assert not ScaleDown().plan(replace(seen, **dear))
    assert names(ScaleDown().plan(replace(seen, **dear | unknown)), c.LendReplica) == ["r0"]
