"""Routing by predicted length: who runs the tail, in which order, what stands until another split is clearly faster."""

import dataclasses
import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.contracts import (
    Cycle,
    MeasuredLengths,
    MeasuredRecall,
    Progress,
    ReplicaView,
    TrajectoryView,
    Unstarted,
    Why,
)
from tailrace.repack import LeastLoaded, LoadError, SkewAware
from tailrace.repack.batch_time import Decoding, fill
from tailrace.repack.testing import SlotAdmission, check_routing_policy, random_cycle
from tailrace.repack.testing.streamrl_reference import split_slowly

# A step takes 10 ms and 0.4 ms for each trajectory; the KV cache costs nothing.
COST: dict[str, Any] = {"k1": 0.0, "k2": 0.0, "k3": 4e-4, "k4": 0.01}
POLICY = SkewAware(**COST)


def replica(name, held=(), capacity=64, **changes):
    """A replica that runs trajectories of these predicted lengths."""
    running = {f"{name}/{n}": TrajectoryView(f"{name}/{n}", 900 + n, 1, 0, False, at) for n, at in enumerate(held)}
    state = {"version": 1, "pulling": False, "kv": 0.1, "kv_before": 0.1, "kv_peak": 0.5, "waiting": 0, "fresh": True}
    return ReplicaView(name, in_flight=len(held), capacity=capacity, trajectories=running, **state | changes)


def cycle(replicas, predicted=(), resumed=(), samples=1, batch_groups=100, slots=None):
    """A cycle with one group of `samples` for each prediction."""
    waiting = Unstarted()
    for group, tokens in enumerate(predicted):
        waiting.add(group, [f"{group}.{sample}" for sample in range(samples)], tokens)
    pool = {1: {view.trajectory: view for view in resumed}} if resumed else {}
    return Cycle(
        replicas=replicas,
        pool=pool | ({None: waiting} if waiting.groups else {}),
        admits=SlotAdmission({1: 1000} if slots is None else slots),
        progress=Progress(1, 1, 0, 0, 0, 0, 0, batch_groups, 100),
        routing=POLICY,
    )


def by_replica(placements):
    queues = {}
    for placement in placements:
        queues.setdefault(placement.replica, []).append(placement.trajectory)
    return queues


@pytest.mark.parametrize(
    "policy",
    [POLICY, SkewAware(7.28e-8, 1.72e-3, 1.25e-4, 1.07e-2, alpha=0.5, hysteresis=0.0), SkewAware(**COST, alpha=0.0)],
)
def test_contract(policy):
    assert check_routing_policy(policy) > 300


def test_a_replica_has_to_do_what_is_left_of_what_it_holds():
    """r0 holds more tokens in all than r1, but they are nearly there; then what is left of what was just placed counts."""
    running = {"r0": (900.0, 50.0), "r1": (600.0, 400.0)}
    views = [
        dataclasses.replace(
            replica(name, [predicted]),
            trajectories={f"{name}/0": TrajectoryView(f"{name}/0", 900, 1, 800, False, predicted, left)},
        )
        for name, (predicted, left) in running.items()
    ]
    waits = [TrajectoryView(f"g{n}", n, 1, 100, False, 500.0, 450.0) for n in range(2)]
    policy = dataclasses.replace(POLICY, alpha=0.0)
    assert by_replica(policy.route(cycle(views, resumed=waits))) == {"r0": ["g0"], "r1": ["g1"]}
    unknown = [dataclasses.replace(view, trajectories=_without_left(view)) for view in views]
    assert by_replica(policy.route(cycle(unknown, resumed=waits))) == {"r1": ["g0"], "r0": ["g1"]}


def _without_left(replica_view):
    views = replica_view.trajectories.items()
    return {name: dataclasses.replace(view, left=None) for name, view in views}


@pytest.mark.parametrize("part", range(4))
def test_what_holds_in_every_cycle(part):
    seen = Counter()
    for seed in range(part * 250, part * 250 + 250):
        drawn = random_cycle(random.Random(seed), routing=POLICY)
        where = f"seed {seed}"
        placements = POLICY.route(drawn)
        views = {view.trajectory: view for queue in drawn.pool.values() for view in queue.values()}
        replicas = {view.replica: view for view in drawn.replicas}
        fresh = [placement for placement in placements if views[placement.trajectory].version is None]
        on = {why: {each.replica for each in fresh if each.reason.why is why} for why in Why}
        regular = on[Why.REGULAR] | on[Why.UNPREDICTED]
        assert not on[Why.LONG_TAIL] & regular, where
        for placement in placements:
            predicted, reason = views[placement.trajectory].predicted, placement.reason
            seen[reason.why] += 1
            assert (reason.why is Why.UNPREDICTED) <= (predicted is None), where
            if reason.why in (Why.LONG_TAIL, Why.REGULAR):
                assert reason.numbers["predicted"] == predicted, where
                longer = predicted > reason.numbers.get("limit", float("inf"))
                assert longer == (reason.why is Why.LONG_TAIL), where
            if reason.why is Why.DRY:
                assert replicas[placement.replica].held == 0, where
        # No open replica stays without work while a group waits that admission lets start there.
        admits = drawn.admits.fork()
        for group, version in {views[each.trajectory].group: replicas[each.replica].version for each in fresh}.items():
            admits.take(group, version)
        if len(fresh) < len(drawn.pool.get(None, ())):
            used = {placement.replica for placement in placements}
            for view in drawn.replicas:
                idle = view.open and not view.held and view.replica not in used and not view.pulling
                assert not (idle and view.version is not None and admits.allows(view.version)), where
    assert min(seen[why] for why in (Why.LONG_TAIL, Why.REGULAR, Why.UNPREDICTED, Why.DRY)) > 0, seen


def test_the_longest_of_a_batch_run_apart_and_first():
    predicted = [610, 9_200, 580, 720, 640, 8_100, 500, 690, 550, 660]
    placements = POLICY.route(cycle([replica("a"), replica("b"), replica("c")], predicted))
    # Two of ten are the tail; all three splits of three replicas are longer than a step of one for the longest.
    assert by_replica(placements) == {
        "a": ["1.0"],
        "b": ["5.0"],
        "c": ["3.0", "7.0", "9.0", "4.0", "0.0", "2.0", "8.0", "6.0"],
    }
    assert placements[0].reason.why is Why.LONG_TAIL
    assert placements[0].reason.numbers == {"predicted": 9_200, "limit": 720}
    assert placements[-1].reason.numbers == {"predicted": 500, "limit": 720}


def test_without_predictions_it_places_what_least_loaded_places():
    busy = [replica("a", [None] * 5), replica("b", [None] * 2), replica("c", capacity=8)]
    waiting = cycle(busy, [None] * 9, samples=4)
    placements = POLICY.route(waiting)
    assert [(each.trajectory, each.replica) for each in placements] == [
        (each.trajectory, each.replica) for each in LeastLoaded().route(waiting)
    ]
    assert {each.reason.why for each in placements} == {Why.UNPREDICTED}


def test_predictions_that_are_all_alike_give_no_tail():
    placements = POLICY.route(cycle([replica("a"), replica("b")], [400] * 6))
    assert {len(queue) for queue in by_replica(placements).values()} == {3}
    assert all(each.reason.numbers == {"predicted": 400} for each in placements)


def test_what_is_not_predicted_is_regular_and_as_long_as_the_median():
    placements = POLICY.route(cycle([replica("a"), replica("b")], [None, 9_000, 100, 300, None, 500]))
    tail = [each for each in placements if each.reason.why is Why.LONG_TAIL]
    assert [each.trajectory for each in tail] == ["1.0", "5.0"]  # ceil(0.2 * 6)
    rest = [each for each in placements if each not in tail]
    assert [each.trajectory for each in rest] == ["0.0", "3.0", "4.0", "2.0"]
    assert [each.reason.why for each in rest] == [Why.UNPREDICTED, Why.REGULAR] * 2


def test_one_replica_takes_the_longest_first():
    placements = POLICY.route(cycle([replica("a")], [3, 9, 5]))
    assert [each.trajectory for each in placements] == ["1.0", "2.0", "0.0"]
    assert {each.reason.why for each in placements} == {Why.REGULAR}


def test_an_earlier_batch_of_prompts_comes_before_a_longer_one():
    # Else the shortest prompts of a pool that is always filled again would never be started.
    narrow = [replica("a", capacity=2)]
    placements = POLICY.route(cycle(narrow, [5, 7, 900, 800], batch_groups=2))
    assert [each.trajectory for each in placements] == ["1.0", "0.0"]


def test_the_replicas_that_hold_the_tail_keep_it():
    held = [replica("a", [300, 310]), replica("b", [5_000, 6_000]), replica("c", [290])]
    placements = POLICY.route(cycle(held, [7_000, 280, 270, 260]))
    assert by_replica(placements)["b"] == ["0.0"]


def test_another_split_must_be_faster_by_the_hysteresis():
    # Two of three hold the tail of 5: 0.0112 * 950 s for it, 0.25 * 100 s for the 600 others. With one it is 0.13 * 100 s.
    held = [
        replica(name, lengths, capacity=1000)
        for name, lengths in (("a", [900] * 2), ("b", [900] * 2), ("c", [100] * 300))
    ]
    waiting = [950, *[100] * 300]

    def used(hysteresis):
        policy = SkewAware(**COST, alpha=0.008, hysteresis=hysteresis)
        return {each.replica for each in policy.route(cycle(held, waiting)) if each.reason.why is Why.REGULAR}

    assert used(0.0) == {"b", "c"}
    assert used(0.9) == {"b", "c"}
    assert used(1.0) == {"c"}


def test_a_replica_without_work_takes_the_longest_that_waits():
    # The one for the others has no room; of the two for the tail one is idle, and nothing of the tail waits.
    held = [replica("a", [9_000] * 5), replica("b"), replica("c", [100] * 40, capacity=40)]
    placements = SkewAware(**COST, alpha=0.1, hysteresis=0.0).route(cycle(held, [80, 95, 90]))
    assert by_replica(placements) == {"b": ["1.0"]}
    assert placements[0].reason.why is Why.DRY
    assert placements[0].reason.numbers == {"predicted": 95}


def test_what_resumes_goes_to_its_class_if_a_replica_of_it_may_go_on():
    held = [replica("a", [9_000]), replica("b", [100] * 5, version=2)]
    resumed = [TrajectoryView("x", 1, 1, 50, False, 120.0), TrajectoryView("y", 2, 1, 50, True, 130.0)]
    placements = {each.trajectory: each for each in SkewAware(**COST, alpha=0.1).route(cycle(held, resumed=resumed))}
    assert (placements["x"].replica, placements["x"].reason.why) == ("b", Why.REGULAR)
    # It must end at version 1, which only the tail's replica serves.
    assert (placements["y"].replica, placements["y"].reason.why) == ("a", Why.CHOSEN)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": 1.5}, "alpha=1.5"),
        ({"alpha": -1}, "alpha=-1"),
        ({"hysteresis": -0.1}, "hysteresis=-0.1"),
        ({"split_recall": 1.1}, "split_recall=1.1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(LoadError, match=words):
        SkewAware(**COST, **options)


@pytest.mark.parametrize("seed", range(20))
def test_predictions_that_find_the_longest_no_better_than_chance_are_not_used(seed):
    draw = random.Random(seed)
    views = [replica(f"r{n}", [9_000] * draw.randint(0, 3)) for n in range(4)]
    predicted = [draw.choice([None, 500, 600, 8_000]) for _ in range(draw.randint(1, 30))]
    told = cycle(views, [*predicted, 700.0], samples=2)
    chance, skill = MeasuredRecall(0.3, 0.34, 128), MeasuredRecall(0.7, 0.34, 128)
    blind = POLICY.route(dataclasses.replace(told, recall=chance))
    least = list(LeastLoaded().route(told))
    assert [(each.trajectory, each.replica) for each in blind] == [(e.trajectory, e.replica) for e in least], (
        f"seed {seed}"
    )
    assert {each.reason.why for each in blind} == {Why.CHANCE}
    assert {tuple(each.reason.numbers.items()) for each in blind} == {(("recall", 0.3), ("chance", 0.34))}
    assert POLICY.route(dataclasses.replace(told, recall=skill)) == POLICY.route(told)
    nothing = cycle([replica("r0"), replica("r1")], [None] * 3, samples=2)
    assert {each.reason.why for each in POLICY.route(dataclasses.replace(nothing, recall=chance))} == {Why.UNPREDICTED}


@pytest.mark.parametrize("seed", range(20))
def test_predictions_that_are_often_wrong_order_what_waits_and_do_not_split_it(seed):
    draw = random.Random(seed)
    views = [replica(f"r{n}") for n in range(4)]
    predicted = [float(draw.randint(100, 9_000)) for _ in range(draw.randint(8, 30))]
    told = cycle(views, predicted, samples=2)
    often_wrong = dataclasses.replace(told, recall=MeasuredRecall(0.64, 0.34, 128))
    placements = POLICY.route(often_wrong)
    assert {each.reason.why for each in placements} == {Why.REGULAR}, f"seed {seed}"
    assert placements == dataclasses.replace(POLICY, alpha=0.0).route(told)
    assert placements == dataclasses.replace(POLICY, alpha=0.0).route(often_wrong)
    assert dataclasses.replace(POLICY, split_recall=0.0).route(often_wrong) == POLICY.route(told)
    starts = [each.reason.numbers["predicted"] for each in placements]
    assert starts == sorted(starts, reverse=True), f"seed {seed}"


# ---- replicas that are not alike ---------------------------------------------------------------------------------------


def seconds(kinds, split, tail, median, longest, p90):
    """Until all is generated if the first `split` of these run the tail: every way to fill them is tried by `fill`."""
    regular = [length for length in median if length]
    parts = ((kinds[:split], len(tail), p90, longest), (kinds[split:], len(regular), regular[0], 0.0))
    return max(fill(some, [0.0] * len(some), count, length, most)[0] for some, count, length, most in parts)


@pytest.mark.parametrize("seed", range(20))
def test_unequal_replicas_are_split_as_is_fastest_with_each_its_own_room(seed):
    draw = random.Random(seed)
    capacities = [draw.choice([4, 16, 64]) for _ in range(draw.randint(2, 6))] + [8, 32]
    views = [replica(f"r{n}", capacity=capacity) for n, capacity in enumerate(capacities)]
    count = min(draw.randint(10, 60), sum(capacities) // 2)
    tail = sorted([draw.uniform(6_000, 9_000) for _ in range(math.ceil(0.2 * count))], reverse=True)
    predicted = [*tail, *([500.0] * (count - len(tail)))]
    placed = POLICY.route(cycle(views, draw.sample(predicted, count), batch_groups=1_000))
    on = {why: {each.replica for each in placed if each.reason.why is why} for why in (Why.LONG_TAIL, Why.REGULAR)}
    assert not on[Why.LONG_TAIL] & on[Why.REGULAR], f"seed {seed}"
    order = sorted(range(len(views)), key=lambda n: (capacities[n], n))
    kinds = [Decoding(lambda batch: COST["k3"] * batch + COST["k4"], lambda _, most=capacities[n]: most) for n in order]
    p90 = sorted(predicted, reverse=True)[count // 10]
    found = [
        (seconds(kinds, split, tail, [500.0] * (count - len(tail)), tail[0], p90), split)
        for split in range(1, len(views))
    ]
    best = min(found)[1]
    assert on[Why.LONG_TAIL] <= {f"r{n}" for n in order[:best]}, f"seed {seed}"
    assert on[Why.REGULAR] <= {f"r{n}" for n in order[best:]}, f"seed {seed}"


def test_unequal_replicas_get_as_much_as_they_can_do_in_the_same_time():
    """A step of 64 takes 2.7 times as long as one of 8 and does 8 times as much: three times as many belong there."""
    views = [replica("large", capacity=64), replica("small", capacity=8)]
    queues = by_replica(POLICY.route(cycle(views, [500.0] * 20, batch_groups=1_000)))
    assert {name: len(queue) for name, queue in queues.items()} == {"large": 15, "small": 5}


def test_the_tail_runs_where_one_decodes_fastest_and_the_others_get_as_much_as_they_can_do():
    """Pool b takes a fifth of the time for a step of few, and all of it for a step of many."""
    policy = SkewAware(**COST, pool_costs=(("b", 0.0, 0.0, 8e-4, 0.002),))
    views = [replica("r0", pool="a"), replica("r1", pool="a"), replica("r2", pool="b"), replica("r3", pool="b")]
    tail, regular = [9_000.0] * 3, [500.0] * 12
    placed = policy.route(cycle(views, [*regular, *tail], batch_groups=1_000))
    long = {each.replica for each in placed if each.reason.why is Why.LONG_TAIL}
    assert long <= {"r2", "r3"}
    alike = dataclasses.replace(policy, pool_costs=(("b", *COST.values()),))
    told = cycle(views, [*regular, *tail], batch_groups=1_000)
    assert alike.route(told) == POLICY.route(told)  # equal costs are no difference


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ((("a", 0.0, 0.0, 1.0, 1.0), ("a", 0.0, 0.0, 1.0, 1.0)), "found pool 'a' twice in pool_costs"),
        ((("a", 0.0, -1.0, 1.0, 1.0),), "found k2=-1.0"),
        ((("a", 0.0, 0.0, 1.0, 0.0),), "found k2 = k4 = 0 of pool 'a'"),
    ],
)
def test_costs_of_a_pool_that_cannot_be_are_refused(costs, message):
    with pytest.raises(LoadError, match=message):
        SkewAware(**COST, pool_costs=costs)


# ---- one batch on idle replicas, as Algorithm 2 has it ---------------------------------------------------------------


@st.composite
def batches(draw):
    predicted = draw(st.lists(st.integers(1, 30_000), min_size=4, max_size=40, unique=True))
    p50 = draw(st.integers(1, 20_000))
    measured = MeasuredLengths(float(p50), float(draw(st.integers(p50, 32_000))), 999)
    options = {
        "k1": draw(st.sampled_from([0.0, 1e-7, 2e-6])),
        "k2": 0.0,
        "k3": draw(st.sampled_from([0.0, 4e-4, 2e-3])),
        "k4": draw(st.sampled_from([0.005, 0.02])),
        "alpha": draw(st.sampled_from([0.05, 0.2, 0.5])),
        "objective": draw(st.sampled_from(["max", "sum"])),
        "own_steps": draw(st.booleans()),
    }
    slots, tokens = draw(st.sampled_from([40, 64])), draw(st.sampled_from([0, 60_000, 400_000]))
    return predicted, measured, options, draw(st.integers(2, 8)), slots, tokens


@settings(max_examples=300, deadline=None)
@given(batches())
def test_one_batch_is_split_as_algorithm_2_tried_slowly_splits_it(case):
    """P50 and P90 of what has finished, and a step by the size of the batch, or of each class at the length of its own."""
    predicted, measured, options, replicas, slots, tokens = case
    tail = math.ceil(round(options["alpha"] * len(predicted), 9))
    if not 0 < tail < len(predicted):
        return
    idle = [replica(f"r{number}", capacity=slots, kv_capacity_tokens=tokens) for number in range(replicas)]
    batch = dataclasses.replace(cycle(idle, predicted), lengths=measured)
    placed = SkewAware(**options).route(batch)

    median = sorted(predicted, reverse=True)[len(predicted) // 2]

    def step_s(own):
        length = own if options["own_steps"] else median
        return lambda size: options["k1"] * size * length + options["k3"] * size + options["k4"]

    _, split = split_slowly(
        predicted,
        replicas,
        step_latency_s=step_s(measured.p90),
        regular_step_latency_s=step_s(measured.p50),
        max_batch=lambda length: max(1, min(slots, int(tokens // length))) if tokens else slots,
        p50=measured.p50,
        p90=measured.p90,
        alpha=options["alpha"],
        objective=options["objective"],
    )
    assert len(placed) == len(predicted)
    longest = sorted(range(len(predicted)), key=lambda at: -predicted[at])[:tail]
    apart = {each.replica for each in placed if each.reason.why is Why.LONG_TAIL}
    assert {each.trajectory for each in placed if each.reason.why is Why.LONG_TAIL} == {f"{at}.0" for at in longest}
    # The tail is fewer than its replicas where even one each leaves some without: those stand apart all the same.
    assert len(apart) == min(split, tail)
    others = {each.replica for each in placed if each.reason.why is Why.REGULAR}
    assert not apart & others
    assert len(others) == min(replicas - split, len(predicted) - tail)


def test_at_lengths_of_their_own_the_tail_gets_more_replicas():
    predicted = [1000 + 500 * at for at in range(40)]
    idle = [replica(f"r{number}", capacity=40) for number in range(6)]
    batch = dataclasses.replace(cycle(idle, predicted), lengths=MeasuredLengths(8_000.0, 20_000.0, 500))

    def tails(own_steps):
        policy = SkewAware(k1=2e-6, k2=0.0, k3=0.0, k4=0.01, own_steps=own_steps)
        return len({each.replica for each in policy.route(batch) if each.reason.why is Why.LONG_TAIL})

    assert tails(False) < tails(True)


def test_p50_and_p90_are_those_of_what_finished_and_not_of_predictions():
    """Predictions are all near 1,000; responses became 100 and 9,000 tokens: the tail gets more replicas."""
    predicted = [1000 + at for at in range(40)]
    idle = [replica(f"r{number}", capacity=20) for number in range(6)]

    def tails(lengths):
        batch = dataclasses.replace(cycle(idle, predicted), lengths=lengths)
        return len({each.replica for each in POLICY.route(batch) if each.reason.why is Why.LONG_TAIL})

    assert tails(None) < tails(MeasuredLengths(100.0, 9_000.0, 500))


def test_the_sum_is_another_objective_than_the_larger():
    found = set()
    for seed in range(200):
        draw = random.Random(seed)
        predicted = [draw.randint(1, 20_000) for _ in range(24)]
        idle = [replica(f"r{number}", capacity=draw.choice([24, 24, 32])) for number in range(5)]
        splits = [
            len({each.replica for each in policy.route(cycle(idle, predicted)) if each.reason.why is Why.LONG_TAIL})
            for policy in (POLICY, dataclasses.replace(POLICY, objective="sum"))
        ]
        found.add(splits[0] == splits[1])
    assert found == {True, False}
    with pytest.raises(LoadError, match="found objective='mean', expected one of max, sum"):
        dataclasses.replace(POLICY, objective="mean")  # type: ignore[arg-type]
