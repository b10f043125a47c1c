"""Trajectories of several turns, and the environment between them."""

import math

import pytest
from engine_costs import FIXED_S, PER_RUNNING_S, Decode, NoPrefill, Prefill, work

from tailrace.fleetsim.engine import ModelledEngine, Work

STEP_S = FIXED_S + PER_RUNNING_S


def engine(capacity=1000, prefill=None, **kwargs):
    return ModelledEngine(Decode(capacity, 0.0), prefill or NoPrefill(), max_running=8, **kwargs)


def test_a_turn_then_the_environment_then_the_next_turn():
    one = engine(prefill=Prefill())
    one.add([Work("a", 10, 0, ((4, 2.0), (3, 0.0)))], 0.0)
    assert one.kv_tokens == 10
    back = Prefill().seconds(10) + 4 * STEP_S + 2.0
    one.advance(1.0)
    assert (one.running, one.waiting, one.in_environment, one.kv_tokens) == (0, 0, 1, 0)
    assert one.next_finish_s() == pytest.approx(back)
    one.advance(back + 0.001)
    assert (one.running, one.in_environment, one.kv_tokens) == (1, 0, 14)
    one.advance(10.0)
    assert one.take_finished() == [(pytest.approx(back + Prefill().seconds(14) + 3 * STEP_S), "a", 7)]
    assert one.busy_s == pytest.approx(Prefill().seconds(10) + Prefill().seconds(14) + 7 * STEP_S)


def test_a_share_of_the_context_is_still_cached_afterwards():
    one = engine(prefill=Prefill(), prefix_cached=0.75)
    one.add([Work("a", 10, 0, ((4, 2.0), (3, 0.0)))], 0.0)
    one.advance(10.0)
    assert one.prefill_s == pytest.approx(Prefill().seconds(10) + Prefill().seconds(14, 10))


def test_the_environment_frees_the_cache_for_others():
    one = engine(capacity=30)
    one.add([Work("a", 10, 0, ((4, 5.0), (3, 0.0))), work("b", 20, 10)], 0.0)
    assert (one.running, one.waiting) == (1, 1)
    one.advance(4 * STEP_S + 0.001)
    assert (one.running, one.waiting, one.in_environment) == (1, 0, 1)


def test_who_comes_back_queues_at_the_end():
    one = engine(capacity=30)
    one.add([Work("a", 10, 0, ((1, 0.0), (3, 0.0))), work("b", 20, 10), work("c", 20, 10)], 0.0)
    one.advance(10.0)
    assert [name for _, name, _ in one.take_finished()] == ["b", "c", "a"]


def test_it_leaves_the_environment_for_another_engine_and_loses_nothing():
    one, other = engine(), engine()
    moved = Work("a", 10, 0, ((4, 2.0), (3, 1.0), (2, 0.0)))
    one.add([moved], 0.0)
    assert one.remove(["a"], 1.0) == [("a", 4)]
    assert moved.environment_s == pytest.approx(4 * STEP_S + 1.0)
    assert one.next_finish_s() == math.inf
    other.add([moved], 1.0)
    assert (other.running, other.in_environment) == (0, 1)
    other.advance(10.0)
    assert other.take_finished() == [(pytest.approx(9 * STEP_S + 3.0), "a", 9)]
    assert one.tokens + other.tokens == 9


def test_kept_tokens_place_it_in_the_right_turn():
    for done, left in ((3, 6), (4, 5), (5, 4), (7, 2), (8, 1)):
        one = engine()
        one.add([Work("a", 10, done, ((4, 2.0), (3, 1.0), (2, 0.0)))], 0.0)
        pauses = 2.0 * (done < 4) + 1.0 * (done < 7)
        one.advance(10.0)
        assert one.take_finished() == [(pytest.approx(left * STEP_S + pauses), "a", 9)]
