"""Skewness-aware dispatch: the split equals plain enumeration, nothing is lost, and each class is spread evenly."""

import math
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tailrace.contracts import TailraceError
from tailrace.repack import LoadError, NothingFitsError, UnmeasuredError, plan_dispatch
from tailrace.repack.batch_time import Decoding, fill
from tailrace.repack.testing.streamrl_reference import fill_slowly, split_slowly, spread_slowly

lengths = st.one_of(st.integers(1, 20), st.integers(1, 32_768), st.floats(1, 32_768))
batches = st.lists(lengths, min_size=1, max_size=60)
# seconds of a step: flat up to a batch, then linear; room: tokens that a replica's KV cache holds
profiles = st.tuples(st.sampled_from([0.005, 0.02]), st.sampled_from([0.0, 0.0003]), st.sampled_from([1, 4, 16]))
rooms = st.sampled_from([40_000, 100_000, 1_000_000])


def step(profile):
    base, slope, flat = profile
    return lambda batch: base + slope * max(0, batch - flat)


def room_for(tokens):
    return lambda length: max(1, int(tokens // length))


@st.composite
def cases(draw):
    predicted, replicas = draw(batches), draw(st.integers(2, 12))
    given = {
        "step_latency_s": step(draw(profiles)),
        "max_batch": room_for(draw(rooms)),
        "p50": draw(lengths),
        "p90": draw(lengths),
        "alpha": draw(st.sampled_from([0.05, 0.2, 0.5, 0.9])),
        "objective": draw(st.sampled_from(["max", "sum"])),
    }
    return predicted, replicas, given


def classes_of(predicted, alpha):
    order = sorted(range(len(predicted)), key=lambda position: (-predicted[position], position))
    tail = math.ceil(round(alpha * len(order), 9))
    return order[:tail], order[tail:]


@settings(max_examples=300, deadline=None)
@given(cases())
def test_the_split_is_the_one_that_plain_enumeration_finds(case):
    predicted, replicas, given = case
    assume(all(classes_of(predicted, given["alpha"])))
    dispatch = plan_dispatch(predicted, replicas, **given)
    assert (dispatch.latency_s, dispatch.tail_replicas) == split_slowly(predicted, replicas, **given)
    assert dispatch.tail_replicas + dispatch.regular_replicas == replicas == len(dispatch.queues)
    assert dispatch.replicas == tuple(range(replicas))
    both = max if given["objective"] == "max" else sum
    assert dispatch.latency_s == both((dispatch.tail_s, dispatch.regular_s))


@settings(max_examples=300, deadline=None)
@given(cases())
def test_each_class_is_spread_over_its_own_replicas_as_a_plain_scan_spreads_it(case):
    predicted, replicas, given = case
    dispatch = plan_dispatch(predicted, replicas, **given)
    for members, queues in zip(
        classes_of(predicted, given["alpha"]),
        (dispatch.queues[: dispatch.tail_replicas], dispatch.queues[dispatch.tail_replicas :]),
        strict=True,
    ):
        if not queues:
            assert not members
            continue
        slow = spread_slowly([predicted[position] for position in members], len(queues))
        assert queues == tuple(tuple(members[position] for position in queue) for queue in slow)
        tokens = [sum(predicted[position] for position in queue) for queue in queues]
        assert not members or max(tokens) - min(tokens) <= predicted[members[0]] * (1 + 1e-9)


@settings(max_examples=200, deadline=None)
@given(cases(), st.data())
def test_nothing_is_lost_or_doubled_whatever_the_replicas_are_and_do(case, data):
    predicted, replicas, given = case
    given |= {
        "objective": "max",
        "step_latency_s": [step(data.draw(profiles)) for _ in range(replicas)],
        "max_batch": [room_for(data.draw(rooms)) for _ in range(replicas)],
        "left_s": data.draw(st.lists(st.sampled_from([0.0, 3.0, 90.0]), min_size=replicas, max_size=replicas)),
    }
    dispatch = plan_dispatch(predicted, replicas, **given)
    assert sorted(position for queue in dispatch.queues for position in queue) == list(range(len(predicted)))
    assert sorted(dispatch.replicas) == list(range(replicas))
    for queue in dispatch.queues:
        assert [predicted[position] for position in queue] == sorted((predicted[at] for at in queue), reverse=True)
    tail = {position for queue in dispatch.queues[: dispatch.tail_replicas] for position in queue}
    assert tail == set(classes_of(predicted, given["alpha"])[0])


@settings(max_examples=100, deadline=None)
@given(cases())
def test_unequal_planning_of_replicas_that_happen_to_be_alike_takes_as_long(case):
    # Functions of their own make each replica a kind of its own, so that the other path plans.
    predicted, replicas, given = case
    given["objective"] = "max"
    alike = plan_dispatch(predicted, replicas, **given)
    of_their_own = [lambda batch, step_s=given["step_latency_s"]: step_s(batch) for _ in range(replicas)]
    apart = plan_dispatch(predicted, replicas, **given | {"step_latency_s": of_their_own})
    assert apart.latency_s == pytest.approx(alike.latency_s, rel=1e-9)
    assert apart.tail_replicas == alike.tail_replicas


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(profiles, rooms, st.sampled_from([0.0, 1.0, 50.0])), min_size=1, max_size=4),
    st.integers(1, 9),
    st.sampled_from([10.0, 9_000.0]),
    st.sampled_from([0.0, 20_000.0]),
)
def test_unequal_replicas_are_filled_in_the_least_time_of_all_ways(replicas, count, length, longest):
    kinds = [Decoding(step(profile), room_for(room)) for profile, room, _ in replicas]
    left_s = [busy for _, _, busy in replicas]
    found, counts = fill(kinds, left_s, count, length, longest)
    times = [
        lambda taken, kind=kind, busy=busy: busy + kind.time_s(taken, length, longest)
        for kind, busy in zip(kinds, left_s, strict=True)
    ]
    assert found == pytest.approx(fill_slowly(times, count), rel=1e-9)
    assert sum(counts) >= count


def test_a_batch_worked_by_hand():
    # Ten trajectories on four replicas; a step takes 10 ms and 1 ms for each trajectory.
    predicted = [10, 90, 20, 30, 80, 15, 25, 12, 18, 22]
    dispatch = plan_dispatch(
        predicted, 4, step_latency_s=lambda batch: 0.010 + 0.001 * batch, max_batch=lambda _: 100, p50=21, p90=80
    )
    # The tail is ceil(2.0) = 2 trajectories, the others 8.
    # 1 replica for the tail:  tail 0.012 * 90 = 1.08 (0.012 * 80 is less), others in threes: 0.013 * 21 = 0.273
    # 2 replicas for the tail: tail 0.011 * 90 = 0.99,                     others in fours:  0.014 * 21 = 0.294
    # 3 replicas for the tail: the same 0.99 with a replica more,          all eight:        0.018 * 21 = 0.378
    assert (dispatch.tail_replicas, dispatch.regular_replicas) == (2, 2)
    assert (dispatch.tail_s, dispatch.regular_s) == (pytest.approx(0.99), pytest.approx(0.294))
    assert dispatch.latency_s == dispatch.tail_s
    # The others, longest first to whoever has least: 30 + 20 + 15 + 12 and 25 + 22 + 18 + 10 tokens.
    assert dispatch.queues == ((1,), (4,), (3, 2, 5, 7), (6, 9, 8, 0))


def test_the_sum_that_the_paper_has_lets_the_longer_class_wait():
    # 80 trajectories in the tail and 320 others on four replicas:
    # 2 for the tail: tail 0.050 * 1000 = 50, others 0.170 * 100 = 17, in all 67
    # 3 for the tail: tail 0.037 * 1000 = 37, others 0.330 * 100 = 33, in all 70, but both are done 13 s earlier
    given: dict[str, Any] = {
        "step_latency_s": lambda batch: 0.01 + 0.001 * batch,
        "max_batch": lambda _: 1000,
        "p50": 100,
        "p90": 1000,
    }
    ours, paper = (plan_dispatch([100] * 400, 4, objective=objective, **given) for objective in ("max", "sum"))
    assert (ours.tail_replicas, ours.latency_s) == (3, pytest.approx(37))
    assert (paper.tail_replicas, paper.latency_s) == (2, pytest.approx(67))


def test_more_trajectories_than_fit_take_several_rounds():
    given: dict[str, Any] = {"step_latency_s": lambda batch: 0.01, "max_batch": lambda _: 4, "p50": 10, "p90": 10}
    dispatch = plan_dispatch([10] * 20, 2, alpha=0.5, **given)
    assert dispatch.latency_s == pytest.approx(0.01 * 10 * 3)


def test_one_replica_runs_everything_longest_first():
    dispatch = plan_dispatch(
        [3, 9, 3, 6, 6], 1, step_latency_s=lambda batch: 0.1 * batch, max_batch=lambda _: 2, p50=5, p90=9
    )
    assert dispatch.queues == ((1, 3, 4, 0, 2),)
    assert (dispatch.tail_replicas, dispatch.regular_replicas) == (0, 1)
    assert dispatch.latency_s == pytest.approx(0.2 * 15)  # 9 and 3 and 3 beside 6 and 6


@pytest.mark.parametrize(
    ("alpha", "count", "split"), [(0.0, 8, (0, 4)), (1.0, 8, (4, 0)), (0.2, 1, (1, 3)), (0.07, 100, (2, 2))]
)
def test_a_class_without_trajectories_takes_no_replica(alpha, count, split):
    given: dict[str, Any] = {
        "step_latency_s": lambda batch: 0.01 * batch,
        "max_batch": lambda _: 100,
        "p50": 10,
        "p90": 90,
    }
    dispatch = plan_dispatch([10] * count, 4, alpha=alpha, **given)
    assert (dispatch.tail_replicas, dispatch.regular_replicas) == split
    # 0.07 of 100 are 7, although the product is 7.000000000000001
    assert alpha != 0.07 or sum(map(len, dispatch.queues[:2])) == 7


def test_equally_fast_splits_go_to_fewer_replicas_for_the_tail():
    given: dict[str, Any] = {"step_latency_s": lambda _: 0.01, "max_batch": lambda _: 100, "p50": 10, "p90": 90}
    assert plan_dispatch([10] * 50, 8, **given).tail_replicas == 1
    assert plan_dispatch([10] * 50, 8, left_s=[0.1] * 8, **given).tail_replicas == 1


def test_what_a_replica_still_has_to_do_counts():
    given: dict[str, Any] = {
        "step_latency_s": lambda batch: 0.01,
        "max_batch": lambda _: 8,
        "p50": 100,
        "p90": 100,
        "alpha": 0.25,
    }
    dispatch = plan_dispatch([100] * 32, 3, left_s=[0.0, 100.0, 0.0], **given)
    # Replica 1 is busy for a hundred rounds: the tail's 8 run on one of the others, and its 24 in three rounds on the other.
    by_replica = dict(zip(dispatch.replicas, dispatch.queues, strict=True))
    assert [len(by_replica[number]) for number in range(3)] == [8, 0, 24]
    assert dispatch.latency_s == pytest.approx(3.0)


def test_the_tail_runs_where_a_lone_trajectory_decodes_fastest():
    slow, fast = (lambda batch: 0.02 + 0.0001 * batch), (lambda batch: 0.01 + 0.002 * batch)
    given: dict[str, Any] = {"max_batch": lambda _: 64, "p50": 10, "p90": 100, "alpha": 0.01}
    dispatch = plan_dispatch([*[10] * 99, 100], 3, step_latency_s=[slow, fast, slow], **given)
    assert (dispatch.tail_replicas, dispatch.replicas) == (1, (1, 0, 2))
    assert dispatch.queues[0] == (99,)


GOOD: dict[str, Any] = {"step_latency_s": lambda batch: 0.01, "max_batch": lambda length: 8, "p50": 10, "p90": 20}
MEASURED = {1: 0.01, 2: 0.011}


@pytest.mark.parametrize(
    ("predicted", "replicas", "change", "error", "words"),
    [
        ([], 2, {}, LoadError, "no predicted, expected at least one trajectory"),
        ([5, 0.5], 2, {}, LoadError, r"predicted\[1\]=0.5, expected"),
        ([5, math.nan], 2, {}, LoadError, r"predicted\[1\]=nan, expected"),
        ([5, None], 2, {}, LoadError, r"predicted\[1\]=None, expected"),
        ([5], 0, {}, LoadError, "replicas=0, expected a whole number of at least 1"),
        ([5], 2, {"alpha": 1.2}, LoadError, "alpha=1.2, expected a share of 0 to 1"),
        ([5], 2, {"alpha": -0.1}, LoadError, "alpha=-0.1"),
        ([5], 2, {"alpha": math.nan}, LoadError, "alpha=nan"),
        ([5], 2, {"p50": 0}, LoadError, "p50=0, expected"),
        ([5], 2, {"p90": math.inf}, LoadError, "p90=inf, expected"),
        ([5], 2, {"objective": "mux"}, LoadError, "objective='mux', expected .*max"),
        ([5], 2, {"left_s": [1.0]}, LoadError, "left_s of 1 replicas, expected one for each of 2"),
        ([5], 2, {"left_s": [1.0, -1.0]}, LoadError, r"left_s\[1\]=-1.0, expected"),
        ([5], 2, {"left_s": [1.0, 2.0], "objective": "sum"}, LoadError, "'sum' for unequal or busy replicas"),
        ([5], 2, {"max_batch": [lambda _: 1]}, LoadError, "max_batch for 1 replicas, expected one function"),
        ([5] * 9, 2, {"max_batch": lambda _: 0}, NothingFitsError, "largest batch of 0 for trajectories of 20 tokens"),
        ([5] * 9, 1, {"max_batch": lambda _: 0}, NothingFitsError, "largest batch of 0"),
        (
            [5] * 9,
            2,
            {"step_latency_s": MEASURED.__getitem__},
            UnmeasuredError,
            "no step latency for a batch of 7 .*KeyError",
        ),
        ([5] * 9, 2, {"step_latency_s": MEASURED.get}, UnmeasuredError, "None as step latency for a batch of 7"),
        ([5] * 9, 2, {"step_latency_s": lambda _: math.nan}, UnmeasuredError, "nan as step latency"),
        ([5] * 9, 2, {"step_latency_s": lambda _: 0.0}, UnmeasuredError, "step latency of 0.0 s"),
        ([5] * 9, 2, {"step_latency_s": lambda _: math.inf}, UnmeasuredError, "step latency of inf s"),
        ([5] * 9, 2, {"max_batch": lambda _: "many"}, UnmeasuredError, "'many' as largest batch for 20 tokens"),
    ],
)
def test_what_cannot_be_planned_is_one_typed_line(predicted, replicas, change, error, words):
    with pytest.raises(error, match=words) as raised:
        plan_dispatch(predicted, replicas, **GOOD | change)
    assert isinstance(raised.value, TailraceError)
    assert isinstance(raised.value, ValueError)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith("found ")


def test_a_profile_that_cannot_answer_in_its_own_typed_words_is_heard():
    def step_latency_s(batch):
        raise UnmeasuredError("found 8 trajectories, measured up to 2")

    with pytest.raises(UnmeasuredError, match=r"^found 8 trajectories, measured up to 2$"):
        plan_dispatch([5] * 9, 2, **GOOD | {"step_latency_s": step_latency_s})


@settings(max_examples=50, deadline=None)
@given(cases())
@example(([7] * 40, 3, GOOD | {"alpha": 0.2}))
def test_the_same_batch_gives_the_same_plan(case):
    predicted, replicas, given = case
    assert plan_dispatch(predicted, replicas, **given) == plan_dispatch(tuple(predicted), replicas, **given)
