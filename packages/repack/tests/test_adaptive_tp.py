"""The size of replicas by kind of round: against a slow obvious reference, and what it must never do."""

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace import contracts as c
from tailrace.contracts.testing.provisioning import ProvisioningDrive, check_provisioning_policy
from tailrace.repack import AdaptiveTP, LoadError, ThroughputModel
from tailrace.repack.testing.streamrl_reference import batch_time_slowly

WINDOW = 64


def record(number, kind, tp, preemptions):
    return c.RoundRecord(number, kind, 8, tp, preemptions, 10.0)


rounds = st.lists(
    st.tuples(
        st.sampled_from(["short", "long"]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([0, 0, 0, 1, 2, 20, 21])
    ),
    max_size=40,
).map(lambda rows: [record(number, *row) for number, row in enumerate(rows)])


def reference(policy, records, kind):
    """Walks through the rounds one by one, and keeps a table for each size."""
    size = {"short": policy.short, "long": policy.long}[kind] or policy.tp
    while size not in policy.sizes:
        size //= 2
    seen, doublings, in_a_row, calm, came_down = {}, {}, 0, 0, False
    answer, previous = size, None
    for one in records:
        if one.kind != kind:
            continue
        if one.tp != previous:
            came_down = previous is not None and one.tp < previous
            if previous is not None and one.tp == 2 * previous:
                doublings[one.tp] = doublings.get(one.tp, 0) + 1
            in_a_row = calm = 0
        previous = one.tp
        in_a_row += 1
        calm = calm + 1 if one.preemptions == 0 else 0
        before = seen.setdefault(one.tp, [])
        up = bool(before) and one.preemptions > policy.rise * (sum(before) / len(before))
        if came_down and in_a_row < policy.calm:
            up = False
        wait = policy.calm
        for _ in range(doublings.get(one.tp, 0) - 1):
            wait *= 2
        answer = one.tp
        if up and one.tp * 2 in policy.sizes:
            answer = one.tp * 2
        elif calm >= wait and one.tp // 2 >= policy.smallest and one.tp // 2 in policy.sizes:
            answer = one.tp // 2
        before.append(one.preemptions)
    return answer


@settings(max_examples=500, deadline=None)
@given(rounds, st.sampled_from([1, 2, 4]), st.sampled_from([4, 8]), st.sampled_from([None, 2, 4]))
def test_it_is_the_reference(records, calm, machine, short):
    policy = AdaptiveTP(count=8, calm=calm, devices_per_machine=machine, short=short)
    for kind in ("short", "long"):
        assert policy.size(records, kind) == reference(policy, records, kind)


@settings(max_examples=200, deadline=None)
@given(rounds)
def test_rounds_of_the_other_kind_say_nothing(records):
    policy = AdaptiveTP(count=8)
    for kind in ("short", "long"):
        assert policy.size(records, kind) == policy.size([one for one in records if one.kind == kind], kind)


def test_more_preemptions_than_usual_double_and_four_rounds_of_none_halve():
    policy = AdaptiveTP(count=4)
    run = [record(0, "short", 1, 20)]
    assert policy.size(run, "short") == 1  # nothing to compare with
    assert policy.size([*run, record(1, "short", 1, 21)], "short") == 1  # 1.05 times
    assert policy.size([*run, record(1, "short", 1, 22)], "short") == 2
    assert policy.size([*run, record(1, "short", 1, 22)], "long") == 1
    calm = [*run, *(record(n, "short", 2, 0) for n in range(1, 5))]
    assert policy.size(calm[:-1], "short") == 2
    assert policy.size(calm, "short") == 1
    again = [*calm, record(5, "short", 1, 90)]
    assert policy.size(again, "short") == 1  # a doubling that was just undone is not repeated at once
    repeated = [
        *calm,
        *(record(n, "short", 1, 90) for n in range(5, 9)),
        *(record(n, "short", 2, 0) for n in range(9, 13)),
    ]
    assert policy.size(repeated, "short") == 2  # and undone after twice as many rounds
    assert policy.size([*repeated, *(record(n, "short", 2, 0) for n in range(13, 17))], "short") == 1


def changes(policy, draw, windows, kinds):
    """How often each kind's size changes in each window of 64 rounds, if preemptions depend on chance and the size alone."""
    records, last = [], {}
    found = {(kind, window): 0 for kind in kinds for window in range(windows)}
    for number in range(windows * WINDOW):
        kind = kinds[number % len(kinds)]
        size = policy.size(records[-WINDOW:], kind)
        found[kind, number // WINDOW] += last.get(kind, size) != size
        last[kind] = size
        records.append(record(number, kind, size, draw(size)))
    return found


@pytest.mark.parametrize("kinds", [["short"], ["short", "short", "short", "short", "long"]])
def test_stationary_preemptions_change_the_size_seldom(kinds):
    """In 64 rounds a doubling is undone after 4, 8, 16 and 32 calm ones, and no more of it fits into them."""
    most = 0
    for seed in range(60):
        rng = random.Random(seed)
        mean, often, calm_above = rng.choice([1, 30, 300]), rng.choice([0.2, 0.6, 1.0]), rng.choice([2, 4, 8])

        def draw(size, rng=rng, mean=mean, often=often, calm_above=calm_above):
            happens = rng.random() < (often if size < calm_above else 0.0)
            return rng.randint(1, 2 * mean) if happens else 0

        policy = AdaptiveTP(count=8, devices_per_machine=rng.choice([2, 8]))
        boundaries = len(policy.sizes) - 1
        for (kind, window), count in changes(policy, draw, 5, kinds).items():
            own = WINDOW * kinds.count(kind) / len(kinds)
            undone = sum(4 * 2**power + 4 <= own for power in range(8))
            assert count <= 2 * (undone + 1) * boundaries, f"seed {seed}, {kind}, window {window}"
            most = max(most, count)
    assert most > 2, "nothing changed"


@dataclass
class Phases(c.ProvisioningPolicy):
    """The policy in a fleet whose rounds come and go."""

    policy: AdaptiveTP
    seed: int

    def plan(self, view):
        rng = random.Random(f"{self.seed} {view.progress.version}")
        kind = rng.choice(["short", "long", None])
        now = None if kind is None else c.RoundView(9, kind, 4, 0, 16, 0)
        past = [record(n, rng.choice(["short", "long"]), rng.choice([1, 2]), rng.choice([0, 0, 5])) for n in range(20)]
        return self.policy.plan(replace(view, round=now, rounds=past))


def test_it_asks_for_rounds_without_which_it_sees_none():
    assert AdaptiveTP().round_milestones() == ()


def test_it_keeps_the_contract_of_its_axis():
    assert check_provisioning_policy(AdaptiveTP(count=3), cases=20) > 20
    resized = 0
    for seed in range(20):
        drive = ProvisioningDrive(Phases(AdaptiveTP(count=4, short=2), seed), seed)
        for _ in range(40):
            drive.settle()
            working = [member for member in drive.replicas() if member.health is not c.Health.STOPPING]
            assert sum(member.tp for member in working) <= 4, f"seed {seed}"
            resized += sum(member.health is c.Health.RESIZING for member in working)
            drive.happen()
    assert resized > 15


# ---- what a change costs ------------------------------------------------------------------------------------------

ROWS = ((1, 400, 0.0, 0.5, 0.02, 0.1), (2, 900, 0.0, 0.3, 0.01, 0.2), (4, 2_000, 0.0, 0.2, 0.005, 0.4))


def charged_view(rounds, kind, sizes, lengths=(), generated=0, samples=16):
    members = [c.MemberView("replica", f"r{n}", c.Health.UP, tp=tp) for n, tp in enumerate(sizes)]
    now = c.RoundView(len(rounds), kind, samples // 4, 0, samples, generated)
    progress = c.Progress(0, 0, 0, 0, 0, 0, 0, 4, 9)
    return c.FleetView({}, members, progress, round=now, rounds=rounds, lengths=lengths)


timed_rounds = st.lists(
    st.tuples(
        st.sampled_from(["short", "short", "long"]),
        st.sampled_from([1, 2]),
        st.sampled_from([0, 3, 30]),
        st.floats(5, 90),
    ),
    max_size=14,
).map(lambda rows: [c.RoundRecord(n, kind, 8, tp, pre, seconds) for n, (kind, tp, pre, seconds) in enumerate(rows)])


@settings(max_examples=400, deadline=None)
@given(
    timed_rounds,
    st.sampled_from(["short", "long"]),
    st.sampled_from([1, 2]),
    st.lists(st.integers(1, 120), max_size=30),
    st.sampled_from([0.0, 5.0, 40.0]),
    st.sampled_from([None, 60]),
)
def test_a_change_is_made_where_it_saves_more_than_it_costs(rounds, kind, tp, lengths, resize_s, longest):
    known = {"replica_costs": ROWS, "longest": longest, "slots": 8}
    policy = AdaptiveTP(count=4, short=2, long=1, resize_s=resize_s, **known)
    free = AdaptiveTP(count=4, short=2, long=1, **known)
    view = charged_view(rounds, kind, [tp] * (4 // tp), lengths)
    wanted, plan = free.plan(view), policy.plan(view)
    assert plan in ((), wanted)
    size = free.size(rounds, kind)
    if size == tp:
        assert plan == ()
        return
    took = {one: [r.generation_s for r in rounds if (r.kind, r.tp) == (kind, one)][-4:] for one in (tp, size)}
    if all(took.values()):
        saved = sum(took[tp]) / len(took[tp]) - sum(took[size]) / len(took[size])
    elif lengths and (longest is None or max(lengths[-16:]) <= longest):
        last = sorted(lengths[-16:])
        batch = [last[n * len(last) // 16] for n in range(16)]
        seconds = {
            one: batch_time_slowly(batch, 4 // one, ThroughputModel(*k), 8, max(kv, max(batch))) for one, kv, *k in ROWS
        }
        saved = seconds[tp] - seconds[size]
    else:
        assert plan == wanted, "nothing says what it saves"
        return
    runs, last_kind = [], None
    for one in rounds:
        if one.kind == kind:
            runs = [*runs[:-1], runs[-1] + 1] if last_kind == kind else [*runs, 1]
        last_kind = one.kind
    total = saved * (sum(runs) / len(runs) if runs else 1)
    if resize_s == 0 or abs(total - resize_s) > 1e-6:
        assert (plan == wanted) == (resize_s == 0 or total > resize_s)


def test_a_charged_change_waits_for_the_beginning_of_a_round_and_one_under_way_is_ended():
    policy = AdaptiveTP(count=2, short=2, resize_s=1.0)
    assert policy.plan(charged_view([], "short", [1, 1]))
    assert policy.plan(charged_view([], "short", [1, 1], generated=3)) == ()
    four = AdaptiveTP(count=4, short=2, resize_s=1.0)
    assert four.plan(charged_view([], "short", [2, 1, 1], generated=3))  # a failure came between


def test_a_profile_says_where_rounds_begin_and_which_sizes_there_are():
    found = c.SizeCosts(short=2, long=1, smallest=1, resize_s=9.0, longest=512, lengths=(3, 4), replica_costs=ROWS[:2])
    facts = c.Facts(prompts=4, samples=4, replicas=4, slots=8, max_tokens=64, sizes=found)
    policy = AdaptiveTP(**AdaptiveTP.options_from(facts))  # type: ignore[arg-type]
    assert (policy.short, policy.long, policy.resize_s, policy.longest, policy.slots) == (2, 1, 9.0, 512, 8)
    assert policy.sizes == (1, 2), "4 was not measured"
    alone = AdaptiveTP(**AdaptiveTP.options_from(replace(facts, devices_per_machine=1)))  # type: ignore[arg-type]
    assert (alone.sizes, alone.short) == ((1,), None)


def test_charged_changes_keep_the_contract_of_the_axis():
    for resize_s in (5.0, 40.0):
        assert (
            check_provisioning_policy(AdaptiveTP(count=4, short=2, resize_s=resize_s, replica_costs=ROWS), cases=10)
            > 10
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"resize_s": -1.0}, "found resize_s=-1.0, expected finite seconds"),
        ({"longest": 0}, "found longest=0, expected at least 1"),
        ({"replica_costs": (ROWS[0], ROWS[0])}, "each size once"),
        ({"tp": 3}, "found tp=3, expected one of 1, 2, 4, 8: a replica spans at most 8 devices"),
        ({"short": 16, "count": 32}, "found short=16, expected one of 1, 2, 4, 8: a replica spans at most 8 devices"),
        ({"long": 8, "count": 8, "heads": 28}, "found long=8, expected one of 1, 2, 4: .* the model has 28 heads"),
        (
            {"smallest": 4, "devices_per_machine": 2},
            "found smallest=4, expected one of 1, 2: a replica spans at most 2 devices",
        ),
        ({"count": 0}, "found count=0, expected at least 1"),
        ({"rise": 0.5}, "found rise=0.5, expected at least 1"),
        ({"calm": 0}, "found calm=0"),
    ],
)
def test_sizes_that_cannot_be_are_refused_in_one_line(options, said):
    with pytest.raises(LoadError, match=said) as error:
        AdaptiveTP(**options)
    assert "\n" not in str(error.value)
