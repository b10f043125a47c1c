"""The number of replicas that keeps generation as fast as training, against slow references, and what it must never do."""

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace import contracts as c
from tailrace.contracts.testing.provisioning import check_provisioning_policy
from tailrace.repack import Balanced, LoadError, RepackError, ThroughputModel, batch_time_s
from tailrace.repack.testing.streamrl_reference import batch_time_slowly, share_slowly

COSTS: dict[str, Any] = {"k1": 1e-5, "k2": 2e-2, "k3": 2e-3, "k4": 5e-3}
ALONE_S = 60.0  # generation of one replica


def iteration(number, generation_s, training_s, replicas, trajectories=16):
    return c.IterationRecord(number, max(generation_s, training_s), generation_s, training_s, replicas, trajectories)


def view(records=(), replicas=2, lengths=(), health=c.Health.UP):
    members = [c.MemberView("trainer", "0", c.Health.UP)]
    members += [c.MemberView("replica", f"r{number}", health, in_flight=4) for number in range(replicas)]
    return c.FleetView({}, members, c.Progress(0, 0, 0, 0, 0, 0, 0, 4, 9), iterations=records, lengths=lengths)


def change(policy, records, replicas, lengths=()):
    """The number of replicas by which the fleet changes."""
    plan = policy.plan(view(records, replicas, lengths))
    assert len(plan) <= 1
    return sum({c.StartReplica: 1, c.StopReplica: -1}[type(one)] for one in plan)


class Run:
    """A run whose generation is divided evenly among its replicas: what the policy decides after each iteration."""

    def __init__(self, policy, seed=0, noise=0.0):
        self.policy, self.random, self.noise = policy, random.Random(seed), noise
        self.records, self.replicas, self.changing = [], policy.start, False

    def go(self, alone_s, training_s, iterations):
        """Changes, by the number of the iteration after which they are decided."""
        changes = {}
        for number in range(1, iterations + 1):
            blur = [1 + self.random.uniform(-self.noise, self.noise) for _ in range(2)]
            times = alone_s / self.replicas * blur[0], training_s * blur[1]
            self.records.append(iteration(len(self.records), *times, 0 if self.changing else self.replicas))
            by = change(self.policy, self.records[-self.policy.watched_iterations() :], self.replicas)
            self.changing = bool(by)
            self.replicas += by
            if by:
                changes[number] = by
        return changes


# ---- seconds of a batch -------------------------------------------------------------------------------------------

costs = st.builds(
    ThroughputModel,
    st.sampled_from([0.0, 1e-6, 1e-3]),
    st.sampled_from([0.0, 1e-2]),
    st.sampled_from([0.0, 1e-3]),
    st.just(1e-3),
)
batches = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(batches, st.integers(1, 5), costs, st.sampled_from([None, 1, 2, 3, 20]))
def test_the_seconds_of_a_batch_are_those_of_its_slowest_replica_step_by_step(lengths, replicas, model, slots):
    expected = batch_time_slowly(lengths, replicas, model, slots)
    assert batch_time_s(lengths, replicas, model, slots) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(batches, costs)
def test_without_a_limit_more_replicas_never_take_longer(lengths, model):
    times = [batch_time_s(lengths, replicas, model) for replicas in range(1, 8)]
    assert all(more <= fewer * (1 + 1e-12) for fewer, more in pairwise(times))


@pytest.mark.parametrize(
    ("lengths", "replicas", "slots"), [([], 1, None), ([3, 0], 1, None), ([3], 0, None), ([3], 1, 0)]
)
def test_what_is_no_batch_is_refused(lengths, replicas, slots):
    with pytest.raises(LoadError, match="expected"):
        batch_time_s(lengths, replicas, ThroughputModel(0, 1, 0, 0), slots)


# ---- adjustment ---------------------------------------------------------------------------------------------------

records = st.lists(
    st.tuples(st.sampled_from([2.0, 5.0, 8.0, 10.0, 13.0, 30.0]), st.sampled_from([0, 2, 2, 2, 2, 3])), max_size=14
).map(lambda rows: [iteration(number, seconds, 10.0, replicas) for number, (seconds, replicas) in enumerate(rows)])


def reference(policy, records, replicas):
    """Walks through the iterations one by one, and counts how often each change was asked for in a row."""
    saved = 1 - replicas / (replicas + 1)
    cost = replicas / (replicas - 1) - 1 if replicas > 1 else 0.0
    wait, more, fewer = 0, 0, 0
    for one in records:
        if one.replicas != replicas:
            wait, more, fewer = policy.cooldown, 0, 0
            continue
        if wait:
            wait -= 1
            continue
        gap = one.generation_s - one.training_s
        more = more + 1 if gap >= saved * one.generation_s and gap >= policy.margin * one.generation_s else 0
        short = gap < 0 and -gap >= cost * one.generation_s and -gap >= policy.margin * one.training_s
        fewer = fewer + 1 if short else 0
    if more >= policy.patience and replicas < policy.most:
        return 1
    return -1 if fewer >= policy.patience and replicas > policy.fewest else 0


@settings(max_examples=300, deadline=None)
@given(records, st.sampled_from([2, 3]), st.integers(1, 3), st.integers(0, 3), st.sampled_from([3, 8]))
def test_it_is_the_reference(records, replicas, patience, cooldown, devices):
    policy = Balanced(count=2, devices=devices, patience=patience, cooldown=cooldown)
    assert change(policy, records, replicas) == reference(policy, records, replicas)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=3, max_size=3), st.integers(1, 8), batches
)
def test_a_change_is_predicted_to_narrow_the_gap_and_never_to_lengthen_an_iteration(times, replicas, lengths):
    policy = Balanced(count=1, devices=9, **COSTS)
    rows = [iteration(number, *seconds, replicas, len(lengths)) for number, seconds in enumerate(times)]  # type: ignore[call-arg]
    (by, *reason) = decided(policy, rows, replicas, lengths)
    if not by:
        return
    numbers = reason[0].numbers
    gap = numbers["generation_s"] - numbers["training_s"]
    after = gap - numbers["saved_s"] if by > 0 else gap + numbers["cost_s"]
    assert abs(after) <= abs(gap)
    assert (after >= -1e-9) if by > 0 else (after <= 1e-9)


def decided(policy, rows, replicas, lengths):
    plan = policy.plan(view(rows, replicas, lengths))
    return (change(policy, rows, replicas, lengths), *(one.reason for one in plan))


@pytest.mark.parametrize("seed", range(20))
def test_harder_prompts_bring_one_within_five_iterations_and_easier_ones_remove_it(seed):
    run = Run(Balanced(count=2), seed, noise=0.05)
    assert run.go(ALONE_S, 30.0, 20) == {}  # stationary
    harder = run.go(1.7 * ALONE_S, 30.0, 25)
    assert list(harder.values()) == [1]
    assert min(harder) <= 5
    easier = run.go(0.8 * ALONE_S, 30.0, 25)
    assert list(easier.values()) == [-1]
    assert min(easier) <= 5


def test_stationary_iterations_do_neither():
    """Whatever the balance is to begin with: twenty noisy iterations in which neither a replica more nor one fewer helps."""
    for seed in range(200):
        rng = random.Random(seed)
        count = rng.choice([1, 2, 3, 8, 32])
        within = rng.uniform(-0.5, 0.5)  # of what a change would bring
        generation_s = 30.0 + within * 30.0 / (count + 1)
        changes = Run(Balanced(count=count), seed, noise=0.02).go(generation_s * count, 30.0, 20)
        assert changes == {}, f"seed {seed}, {count} replicas"


@pytest.mark.parametrize("seed", range(10))
def test_it_comes_to_rest_and_does_not_flap(seed):
    rng = random.Random(seed)
    run = Run(Balanced(count=4, devices=16), seed, noise=0.03)
    work_s = rng.choice([20.0, 70.0, 250.0, 4_000.0])
    run.go(work_s, 30.0, 150)
    assert run.go(work_s, 30.0, 100) == {}
    assert run.replicas == max(1, min(16, run.replicas))
    assert run.replicas in (1, 16) or abs(work_s / run.replicas - 30.0) <= work_s / run.replicas / (run.replicas - 1)


def test_one_noisy_iteration_changes_nothing():
    calm = [iteration(number, 30.0, 30.0, 2) for number in range(6)]
    for burst in (1, 2):
        slow = [iteration(number, 90.0, 30.0, 2) for number in range(6, 6 + burst)]
        assert change(Balanced(count=2), [*calm, *slow], 2) == 0
    assert change(Balanced(count=2), [iteration(number, 90.0, 30.0, 2) for number in range(3)], 2) == 1


def test_a_replica_that_saves_nothing_is_not_added():
    """The longest response alone takes nearly all the time: literally, the gap is then always at least what is saved."""
    policy = Balanced(count=2, **COSTS | {"k1": 0.0, "k3": 0.0})
    rows = [iteration(number, 90.0, 30.0, 2) for number in range(6)]
    assert change(policy, rows, 2, [500] * 16) == 0  # a step takes as long for few as for many
    assert change(Balanced(count=2, **COSTS | {"k2": 0.0}), rows, 2, [500] * 16) == 1


def test_it_waits_while_a_replica_starts_fails_or_stops():
    rows = [iteration(number, 90.0, 30.0, 2) for number in range(6)]
    policy = Balanced(count=2)
    for health in (c.Health.STARTING, c.Health.DOWN, c.Health.RESIZING):
        assert policy.plan(view(rows, 2, health=health)) == ()
    members = [*view(rows, 2).members, c.MemberView("replica", "r9", c.Health.STOPPING)]
    assert policy.plan(replace(view(rows, 2), members=members)) == ()
    assert len(policy.plan(view(rows, 2))) == 1


def test_it_lets_a_run_end_that_has_started_its_last_group():
    rows = [iteration(number, 1.0, 30.0, 2) for number in range(6)]
    last = c.Progress(
        8, 8, admitted=37, generating=0, buffered=0, consumed=32, dropped=1, batch_groups=4, last_version=9
    )
    assert Balanced(count=2).plan(replace(view(rows, 2), progress=last)) == ()
    assert Balanced(count=2).plan(replace(view(rows, 2), progress=replace(last, dropped=2)))


def test_the_leaver_holds_least_and_of_equals_is_the_youngest():
    rows = [iteration(number, 5.0, 30.0, 3) for number in range(6)]
    policy = Balanced(count=2)
    assert [one.replica for one in policy.plan(view(rows, 3))] == ["r2"]
    members = [replace(one, in_flight=0) if one.id == "r1" else one for one in view(rows, 3).members]
    assert [one.replica for one in policy.plan(replace(view(rows, 3), members=members))] == ["r1"]


def test_devices_and_the_fewest_are_kept():
    slow = [iteration(number, 90.0, 30.0, 3) for number in range(6)]
    assert change(Balanced(count=2, devices=3), slow, 3) == 0
    assert change(Balanced(count=2, tp=2, devices=7), slow, 3) == 0
    fast = [iteration(number, 1.0, 30.0, 2) for number in range(6)]
    assert change(Balanced(count=2, fewest=2), fast, 2) == 0
    assert change(Balanced(count=2), fast, 2) == -1


# ---- the start ----------------------------------------------------------------------------------------------------


def test_it_starts_as_many_as_are_asked_for_or_as_a_profile_says():
    assert [type(one) for one in Balanced(count=3).plan(view(replicas=0))] == [c.StartReplica] * 3
    known: dict[str, Any] = {"lengths": (400,) * 30 + (900,) * 2, "trajectories": 32, "slots": 16, **COSTS}
    model = ThroughputModel(**COSTS)
    batch = known["lengths"]
    needed = {}
    for replicas in (1, 2, 3, 4):
        train_s = batch_time_s(batch, replicas, model, 16) * 1.001
        needed[replicas] = Balanced(count=1, devices=4, train_s=train_s, **known).start
    assert needed == {1: 1, 2: 2, 3: 3, 4: 4}
    assert Balanced(count=1, devices=4, train_s=1e-3, **known).start == 4  # generation is slower with all of them
    assert Balanced(count=3, devices=4, fewest=3, train_s=1e6, **known).start == 3


def test_it_starts_replicas_of_the_size_that_is_best_and_says_what_it_predicts():
    """The batch and the costs that are worked by hand in `test_parallelism.py`."""
    sizes = ((1, 0, 0.0, 0.0, 1.0, 1.0), (2, 0, 0.0, 0.0, 0.5, 1.0))
    known: dict[str, Any] = {"devices": 4, "lengths": (10, 10, 10, 40), "trajectories": 4, "replica_costs": sizes}
    policy = Balanced(count=4, tp=1, training_times=((1, 130.0), (2, 66.0)), trainer_devices=2, **known)
    assert (policy.start, policy.spans, policy.most) == (2, 2, 2)
    first, second = policy.plan(view(replicas=0))
    assert first == second
    assert first.tp == 2
    assert first.reason.why is c.Why.ALLOCATED
    assert first.reason.numbers == {"replicas": 2, "devices": 2, "generation_s": 65.0, "training_s": 66.0}
    assert check_provisioning_policy(policy, cases=5)
    # With the trainer's 130 s a replica less is enough.
    slow = Balanced(count=4, tp=1, train_s=130.0, **known)
    assert (slow.start, slow.spans) == (1, 1)
    assert slow.plan(view(replicas=0))[0].tp is None  # as the run's configuration says
    # What is not known is not guessed.
    assert Balanced(count=4, tp=1, **known | {"devices": 8}).plan(view(replicas=0)) == [c.StartReplica()] * 4
    assert Balanced(count=1, tp=1, train_s=1.0, fewest=2, **known).start == 2


def test_a_replica_that_is_added_later_has_the_size_of_the_others():
    sizes = ((1, 0, 0.0, 0.0, 1.0, 1.0), (2, 0, 0.0, 0.0, 0.5, 1.0))
    lengths = (10, 10, 10, 40)
    policy = Balanced(count=1, devices=8, train_s=74.0, lengths=lengths, trajectories=4, replica_costs=sizes)
    assert (policy.start, policy.spans, policy.most) == (1, 2, 4)
    rows = [iteration(number, 150.0, 74.0, 1, 4) for number in range(6)]
    (added,) = policy.plan(view(rows, 1, lengths * 4))
    assert (added.tp, added.reason.why) == (2, c.Why.GENERATION_SLOWER)


# ---- whole nodes, and both stages together ------------------------------------------------------------------------


@pytest.mark.parametrize(("tp", "unit"), [(1, 4), (2, 4), (4, 8)])
@pytest.mark.cases(1)
def test_whole_units_come_and_go(tp, unit):
    each = unit // tp
    policy = Balanced(count=2 * each, tp=tp, devices=4 * unit, unit_devices=unit)
    slow = [iteration(number, 90.0, 30.0, 2 * each) for number in range(6)]
    added = policy.plan(view(slow, 2 * each))
    assert [type(one) for one in added] == [c.StartReplica] * each
    fast = [iteration(number, 4.0, 30.0, 2 * each) for number in range(6)]
    removed = policy.plan(view(fast, 2 * each))
    assert [one.replica for one in removed] == [f"r{n}" for n in range(2 * each - 1, each - 1, -1)]
    assert policy.most == 4 * each
    full = [iteration(number, 90.0, 30.0, 4 * each) for number in range(6)]
    assert policy.plan(view(full, 4 * each)) == ()
    assert check_provisioning_policy(policy)


def test_the_unit_that_leaves_is_that_of_one_machine():
    """Members alternate between two machines, and those of machine a have less to do."""
    policy = Balanced(count=8, devices=16, unit_devices=4)
    seen = view([iteration(number, 4.0, 30.0, 8) for number in range(6)], 8)
    members = [
        replace(one, machine="ab"[place % 2], in_flight=4 + place % 2) if one.role == "replica" else one
        for place, one in enumerate(seen.members, -1)
    ]
    removed = policy.plan(replace(seen, members=members))
    assert [one.replica for one in removed] == ["r6", "r4", "r2", "r0"]


def test_a_unit_must_save_its_share_of_what_it_would_if_work_divided_evenly():
    """Two thirds of the gap that four more would close are none; with one more at a time the same gap is enough."""
    rows = [iteration(number, 40.0, 30.0, 4) for number in range(6)]
    assert len(Balanced(count=4, devices=16).plan(view(rows, 4))) == 1
    assert Balanced(count=4, devices=16, unit_devices=4).plan(view(rows, 4)) == ()
    assert (
        len(Balanced(count=4, devices=16, unit_devices=4).plan(view([replace(r, generation_s=61.0) for r in rows], 4)))
        == 4
    )


def test_a_start_that_is_chosen_fills_whole_units():
    known: dict[str, Any] = {"lengths": (400,) * 30 + (900,) * 2, "trajectories": 32, "slots": 16, **COSTS}
    model = ThroughputModel(**COSTS)
    train_s = batch_time_s(known["lengths"], 3, model, 16) * 1.001
    assert Balanced(count=2, devices=8, unit_devices=2, train_s=train_s, **known).start == 4


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 8),
    st.lists(st.integers(1, 40), min_size=1, max_size=9),
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from([5.0, 20.0, 50.0])), min_size=1, max_size=4),
)
def test_both_stages_begin_as_algorithm_1_shares_the_devices(devices, batch, training):
    sizes = ((1, 0, 0.0, 0.0, 1.0, 1.0), (2, 0, 0.0, 0.0, 0.5, 1.0))
    known: dict[str, Any] = {"lengths": tuple(sorted(batch)), "trajectories": len(batch), "replica_costs": sizes}
    expected = share_slowly(devices, sorted(batch), sizes, training, None)

    def policy():
        return Balanced(all_devices=devices, training_times=tuple(training), **known)

    if expected is None:
        with pytest.raises(RepackError):
            policy()
        return
    found = policy()
    seconds = dict[int, float]()
    for count, took in training:
        seconds[count] = min(took, seconds.get(count, took))
    assert found.trains_on() in seconds
    generation_s = batch_time_slowly(
        sorted(batch), found.start, ThroughputModel(*{size[0]: size[2:] for size in sizes}[found.spans]), None
    )
    assert max(generation_s, seconds[found.trains_on()]) <= expected[0] * 1.02 + 1e-9
    assert found.start * found.spans + found.trains_on() <= devices
    assert Balanced(count=1).trains_on() is None


# ---- one of several pools -----------------------------------------------------------------------------------------

POOLS = (("home", 4, 1, 16), ("cloud", 2, 2, 16))


def pooled(records, home=4, cloud=2):
    names = ["home"] * home + ["cloud"] * cloud
    members = [c.MemberView("trainer", "0", c.Health.UP)]
    members += [
        c.MemberView("replica", f"r{n}", c.Health.UP, in_flight=4, tp=2 if name == "cloud" else 1, pool=name)
        for n, name in enumerate(names)
    ]
    return replace(view(records), members=members)


@pytest.mark.parametrize("cheap", [True, False])
def test_of_several_pools_one_comes_and_goes_by_what_its_replicas_are_worth(cheap):
    """A replica of the cloud decodes twice as fast as one at home: two of it are four of home."""
    speeds = (("home", 0.0, 0.0, 0.0, 0.02), ("cloud", 0.0, 0.0, 0.0, 0.01))
    policy = Balanced(count=6, pools=POOLS, pool="cloud", devices=8, pool_costs=speeds if cheap else ())
    worth = 4 / 2 if cheap else 4.0
    saved = 1 / (worth + 2 + 1)
    for gap, adds in ((saved + 0.01, True), (saved - 0.01, False)):
        rows = [iteration(number, 100.0, 100.0 * (1 - gap), 6) for number in range(6)]
        plan = policy.plan(pooled(rows))
        assert [one.pool for one in plan if isinstance(one, c.StartReplica)] == ["cloud"] * adds
    cost = 1 / (worth + 2 - 1)
    for gap, removes in ((cost + 0.01, True), (cost - 0.01, False)):
        rows = [iteration(number, 100.0, 100.0 * (1 + gap), 6) for number in range(6)]
        plan = policy.plan(pooled(rows))
        assert [one.replica for one in plan if isinstance(one, c.StopReplica)] == ["r5"] * removes, "none of home"
    full = [iteration(number, 900.0, 10.0, 8) for number in range(6)]
    assert policy.plan(pooled(full, cloud=4)) == (), "its devices hold four"
    assert policy.growth() == c.Growth(6, 8, None, "cloud")
    starts = policy.plan(replace(view(replicas=0)))
    assert [one.pool for one in starts] == ["home"] * 4 + ["cloud"] * 2


def test_facts_bring_the_pools():
    facts = c.Facts(
        prompts=4, samples=4, replicas=6, slots=16, max_tokens=64,
        pools=tuple(c.PoolFacts(*pool) for pool in POOLS), pool_costs=(("home", c.StepCosts(0.0, 0.0, 0.0, 0.02)),),
    )  # fmt: skip
    options = Balanced.options_from(facts)
    assert (options["pools"], options["pool_costs"]) == (POOLS, (("home", 0.0, 0.0, 0.0, 0.02),))
    alike = Balanced.options_from(replace(facts, pools=facts.pools[:1], pool_costs=()))
    assert alike["pools"] == ()


# ---- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"count": 2, "devices": 2}, "devices=2 for 2 replicas of 1 at the start, so that none is free"),
        ({"count": 2, "tp": 4, "devices": 11}, "expected at least 12"),
        ({"count": 0}, "count=0"),
        ({"patience": 0}, "patience=0"),
        ({"cooldown": -1}, "cooldown=-1"),
        ({"margin": 1.0}, "margin=1.0"),
        ({"count": 1, "fewest": 2}, "fewest=2 and 1 replicas"),
        ({"slots": 0}, "slots=0"),
        ({"train_s": -1.0, **COSTS}, "train_s=-1.0"),
        ({"train_s": 1.0}, "without a cost model"),
        ({"lengths": (0,), **COSTS}, "lengths"),
        ({**COSTS, "k2": 0.0, "k4": 0.0}, "k2=0.0 and k4=0.0"),
        ({"trainer_devices": 0}, "trainer_devices=0"),
        ({"unit_devices": 3, "tp": 2}, "unit_devices=3 and replicas of 2 devices"),
        ({"unit_devices": 2, "count": 3}, "found 3 replicas at the start and units of 2"),
        ({"unit_devices": 2, "count": 2, "devices": 3}, "none is free for 2 more; expected at least 4"),
        (
            {"pool": "cloud"},
            "found pool='cloud', expected one of several pools of the run (none: all replicas are alike)",
        ),
        ({"pool": "east", "pools": POOLS}, "found pool='east', expected one of several pools of the run (home, cloud)"),
        ({"pool": "cloud", "pools": POOLS, "train_s": 3.0, **COSTS}, "several pools begin as configured"),
        ({"pool": "cloud", "pools": POOLS, "devices": 5}, "found devices=5 for 2 replicas of 2"),
        ({"all_devices": 8, "lengths": (4,)}, "all_devices=8 without replica_costs and training_times"),
        (
            {
                "all_devices": 8,
                "devices": 4,
                "lengths": (4,),
                "trajectories": 2,
                "training_times": ((2, 9.0),),
                "replica_costs": ((1, 0, 0.0, 0.0, 0.0, 1.0),),
            },
            "all_devices beside devices",
        ),
        (
            {"replica_costs": ((3, 0, 0.0, 0.0, 0.0, 1.0),)},
            "found a replica of 3 devices in replica_costs, expected powers of two",
        ),
        ({"replica_costs": ((8, 0, 0.0, 0.0, 0.0, 1.0),), "heads": 4}, "that divide the model's 4 heads"),
        ({"replica_costs": ((1, 0, 0.0, 0.0, 0.0, 1.0),) * 2}, "each size once"),
        (
            {"training_times": ((2, 9.0), (4, 5.0)), "trainer_devices": 8},
            "no row of 8 devices in training_times, which the trainer has",
        ),
    ],
)
def test_an_option_out_of_its_range_is_refused_in_a_line(options, says):
    with pytest.raises(LoadError) as caught:
        Balanced(**options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"count": 1, "patience": 1, "cooldown": 0}, {"count": 3, **COSTS}])
def test_it_keeps_the_rules_of_its_axis(options):
    assert check_provisioning_policy(Balanced(**options))
