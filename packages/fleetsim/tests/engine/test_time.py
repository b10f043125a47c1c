"""How an engine passes time: asked often or seldom, faster or slower, the same trajectories finish at the same moments."""

import copy
import math
from itertools import count

import pytest
from engine_costs import FIXED_S, PER_RUNNING_S, TICK_S, Decode, Prefill, work, works
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.fleetsim.engine import ModelledEngine, Work


@st.composite
def histories(draw):
    """An engine's arguments, and calls that change it, in order of time."""
    capacity = draw(st.sampled_from([45, 90, 400]))
    kwargs = {"max_running": draw(st.sampled_from([1, 3, 30]))}
    names, now, calls = count(), 0.0, []
    for _ in range(draw(st.integers(1, 8))):
        now += draw(st.integers(0, 100)) * TICK_S
        kind = draw(st.sampled_from(["add", "add", "add", "remove", "set_speed"]))
        if kind == "add":
            argument = draw(works(names, capacity))
        elif kind == "remove":
            argument = draw(st.lists(st.integers(0, 20).map(str), max_size=3))
        else:
            argument = draw(st.sampled_from([0.0, 0.4, 1.0, 3.0]))
        calls.append((now, kind, argument))
    return capacity, kwargs, [*calls, (now, "set_speed", 1.0)]


def made(capacity, kwargs):
    return ModelledEngine(Decode(capacity), Prefill(), **kwargs)


def totals(engine):
    return (*engine.totals(), engine.preemptions, engine.kv_tokens, engine.running, engine.waiting)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.lists(st.floats(0, 1), max_size=30))
def test_many_small_steps_are_one_big_one_to_the_last_bit(history, shares):
    capacity, kwargs, calls = history
    seldom, often = made(capacity, kwargs), made(capacity, kwargs)
    pause = sorted(share * (calls[-1][0] + 5.0) for share in shares)
    end = calls[-1][0] + 1000.0
    for now, kind, argument in copy.deepcopy(calls):
        getattr(seldom, kind)(argument, now)
    seldom.advance(end)
    taken = []
    for now, kind, argument in calls:
        while pause and pause[0] <= now:
            often.advance(pause.pop(0))
            totals(often)  # looking changes nothing either
            often.next_finish_s()
            taken += often.take_finished()
        getattr(often, kind)(argument, now)
    for now in pause:
        often.advance(now)
    often.advance(end)
    assert taken + often.take_finished() == seldom.take_finished()
    assert totals(often) == totals(seldom)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_nothing_finishes_before_the_next_finish(history):
    capacity, kwargs, calls = history
    engine = made(capacity, kwargs)
    for now, kind, argument in calls:
        getattr(engine, kind)(argument, now)
        engine.take_finished()
        bound = engine.next_finish_s()
        assert bound >= now
        before = math.nextafter(min(bound, now + 50.0), -math.inf)
        if before > now:
            ahead = copy.deepcopy(engine)
            ahead.advance(before)
            assert ahead.take_finished() == []
    wakes, left = 0, engine.running + engine.waiting
    preempted = engine.preemptions
    finished = []
    while (at := engine.next_finish_s()) < math.inf:
        wakes += 1
        engine.advance(at)
        now_finished = engine.take_finished()
        assert all(when == at for when, _, _ in now_finished)  # whoever follows the bound learns of it in time
        finished += now_finished
    assert len(finished) == left
    assert engine.running + engine.waiting == 0
    assert wakes <= 8 * left + engine.preemptions - preempted  # ends and admissions; never a wake for each token


def test_one_batch_change_for_each_finish_when_the_cache_is_large():
    class Counting(ModelledEngine):
        __slots__ = ("changes",)

        def _change_batch(self):
            self.changes += 1
            super()._change_batch()

    engine = Counting(Decode(10**7), Prefill(), max_running=1000)
    engine.changes = 0
    engine.add([work(f"{i}", 50, 100 + 7 * i) for i in range(500)], 0.0)
    engine.advance(1e6)
    assert len(engine.take_finished()) == 500
    assert engine.changes <= 501  # of 900,000 tokens


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_the_same_calls_give_the_same_answers(history):
    capacity, kwargs, calls = history
    results = []
    for _ in range(2):
        engine, answers = made(capacity, kwargs), []
        for now, kind, argument in copy.deepcopy(calls):
            answers.append(getattr(engine, kind)(argument, now))
        engine.advance(calls[-1][0] + 1000.0)
        results.append((answers, engine.take_finished(), totals(engine)))
    assert results[0] == results[1]


def test_at_half_speed_it_takes_twice_as_long():
    fast, slow = (ModelledEngine(Decode(1000), Prefill(), max_running=4) for _ in range(2))
    slow.set_speed(0.5, 0.0)
    for engine in (fast, slow):
        engine.add([Work("a", 10, 0, 10)], 0.0)
        engine.advance(20.0)
    ((fast_s, *_),), ((slow_s, *_),) = fast.take_finished(), slow.take_finished()
    assert slow_s == pytest.approx(2 * fast_s)
    assert slow.busy_s == pytest.approx(2 * fast.busy_s)
    assert slow.kv_share_s == pytest.approx(2 * fast.kv_share_s)


def test_it_hangs_and_goes_on_in_the_middle_of_a_step():
    engine = ModelledEngine(Decode(1000, 0.0), Prefill(), max_running=4)
    engine.add([work("a", response=10)], 0.0)
    end = engine.next_finish_s()
    stop = end - 3.5 * (FIXED_S + PER_RUNNING_S)
    engine.set_speed(0.0, stop)
    assert engine.next_finish_s() == math.inf
    engine.advance(100.0)
    assert (engine.running, engine.tokens, engine.take_finished()) == (1, 6, [])
    assert engine.busy_s == pytest.approx(stop)
    engine.add([work("b", response=1)], 100.0)
    assert engine.waiting == 1
    engine.set_speed(1.0, 100.0)
    engine.advance(200.0)
    assert [name for _, name, _ in engine.take_finished()] == ["b", "a"]
    assert engine.running_s > engine.busy_s


def test_a_hung_engine_gives_its_work_back():
    engine = ModelledEngine(Decode(1000), Prefill(), max_running=1)
    engine.add([work("a", response=10), work("b"), Work("c", 5, 1, 3)], 0.0)
    engine.set_speed(0.0, 0.05)
    assert engine.clear(6.0) == [("a", 4), ("b", 0), ("c", 1)]
