"""Admission, preemption, and what an engine refuses."""

import math

import pytest
from engine_costs import FIXED_S, PER_RUNNING_S, Decode, NoPrefill, Prefill, work

from tailrace.contracts import TailraceError
from tailrace.fleetsim.engine import ModelledEngine, Work
from tailrace.fleetsim.errors import EngineError, WorkError


def engine(capacity, *, prefill=None, **kwargs):
    return ModelledEngine(Decode(capacity, 0.0), prefill or NoPrefill(), **{"max_running": 100} | kwargs)


def order(finished):
    return [name for _, name, _ in finished]


def test_one_trajectory_takes_its_prefill_and_its_steps():
    one = ModelledEngine(Decode(1000), Prefill(), max_running=4)
    one.add([work("a", prompt=100, response=7)], 5.0)
    expected = 5.0 + Prefill().seconds(100) + sum(FIXED_S + PER_RUNNING_S + 1.23457e-5 * (100 + k) for k in range(7))
    assert one.next_finish_s() == pytest.approx(expected, rel=1e-12)
    one.advance(one.next_finish_s())
    assert one.take_finished() == [(pytest.approx(expected), "a", 7)]
    assert (one.running, one.waiting, one.kv_tokens, one.tokens) == (0, 0, 0, 7)
    assert one.take_finished() == []
    assert one.next_finish_s() == math.inf


def test_kept_tokens_are_prefilled_and_not_generated_again():
    one = ModelledEngine(Decode(1000), Prefill(), max_running=4)
    one.add([work("a", prompt=100, response=7, done=3)], 0.0)
    assert one.kv_tokens == 103
    one.advance(1.0)
    assert [(name, tokens) for _, name, tokens in one.take_finished()] == [("a", 7)]
    assert one.tokens == 4
    assert one.prefill_s == pytest.approx(Prefill().seconds(103))


def test_the_batch_is_first_come_first_served_and_limited():
    one = engine(10_000, max_running=2)
    one.add([work("long", response=30), work("a", response=5), work("b", response=5), work("c", response=1)], 0.0)
    assert (one.running, one.waiting) == (2, 2)
    one.advance(10.0)
    assert order(one.take_finished()) == ["a", "b", "c", "long"]


def test_the_queue_does_not_overtake_its_head():
    one = engine(100)
    one.add([work("a", 50, 20), work("big", 60, 5), work("small", 5, 5)], 0.0)
    assert (one.running, one.waiting) == (1, 2)
    one.advance(10.0)
    assert order(one.take_finished()) == ["a", "big", "small"]


def test_the_last_admitted_is_preempted_first_and_admitted_again_before_others():
    one = engine(100, prefill=Prefill())
    one.add([work("a", 30, 40), work("b", 30, 40), work("c", 20, 40), work("d", 1, 1)], 0.0)
    assert (one.running, one.waiting, one.kv_tokens) == (4, 0, 81)
    one.advance(0.15)  # `d` has its token; then six more steps fit: 80 + 3 + 6 * 3 > 100
    assert (one.running, one.waiting, one.preemptions) == (2, 1, 1)
    prefill_s = one.prefill_s
    one.add([work("e", 1, 1)], 0.15)
    assert (one.running, one.waiting) == (2, 2)  # `e` fits, but `c` is before it
    one.advance(10.0)
    assert order(one.take_finished()) == ["d", "a", "e", "b", "c"]
    assert one.tokens == 40 * 3 + 2
    assert one.preemptions == 3  # `b` too, before `a` ends, and then `c` again, before `b` ends
    assert one.prefill_s > prefill_s + Prefill().seconds(26) + Prefill().seconds(30)


def test_the_watermark_keeps_an_admission_from_being_preempted_at_once():
    works = [work("a", 40, 50), *(work(f"b{i}", 15, 30) for i in range(4))]
    bare, careful = engine(100, watermark=0.0), engine(100, watermark=0.2)
    for one in (bare, careful):
        one.add([Work(w.id, w.prompt_tokens, 0, w.response_tokens) for w in works], 0.0)
        one.advance(100.0)
        assert len(one.take_finished()) == 5
    assert careful.preemptions < bare.preemptions


def test_work_as_large_as_the_cache_runs_alone():
    one = engine(100)
    one.add([work("a", 50, 50), work("b", 99, 1), work("c", 1, 99)], 0.0)
    one.advance(10.0)
    assert order(one.take_finished()) == ["a", "b", "c"]
    assert one.kv_share == 0.0


def test_an_arrival_waits_for_the_step_under_way():
    one = engine(1000)
    one.add([work("a", response=10)], 0.0)
    step_s = FIXED_S + PER_RUNNING_S
    one.add([work("b", response=1)], 2.5 * step_s)
    assert (one.running, one.waiting) == (1, 1)
    one.advance(3.01 * step_s)
    assert (one.running, one.waiting) == (2, 0)
    one.advance(1.0)
    (b, a) = one.take_finished()
    assert b == (pytest.approx(3 * step_s + FIXED_S + 2 * PER_RUNNING_S), "b", 1)
    assert a == (pytest.approx(10 * step_s + PER_RUNNING_S), "a", 10)


def test_those_that_stay_finish_the_step_under_way():
    one = engine(1000)
    one.add([work("a", response=3), *(work(f"b{i}", response=3) for i in range(9))], 0.0)
    many_s, one_s = FIXED_S + 10 * PER_RUNNING_S, FIXED_S + PER_RUNNING_S
    now = 1.9 * many_s
    assert one.remove([f"b{i}" for i in range(9)], now) == [(f"b{i}", 1) for i in range(9)]
    one.advance(1.0)
    # Alone, its second step would have been over before now: it is over now.
    assert one.take_finished() == [(pytest.approx(now + one_s), "a", 3)]
    assert one.decode_s == pytest.approx(now + one_s)


def test_a_step_is_not_over_while_the_engine_hangs():
    for k in range(200):  # whichever way the start of the step is rounded
        one = engine(1000, start_s=0.1 * k)
        one.add([work("a", response=3), *(work(f"b{i}", response=3) for i in range(9))], 0.1 * k)
        now = 0.1 * k + 0.9 * (FIXED_S + 10 * PER_RUNNING_S) + 7e-6 * k
        one.set_speed(0.0, now)
        one.remove([f"b{i}" for i in range(9)], now)
        assert (one.kv_tokens, one.remove(["a"], now + 1.0)) == (10, [("a", 0)])


def test_removing_the_head_lets_the_next_one_in():
    one = engine(100)
    one.add([work("a", 50, 20), work("big", 60, 5), work("small", 5, 5)], 0.0)
    assert one.remove(["big", "stranger", "big"], 0.001) == [("big", 0)]
    one.advance(0.02)
    assert (one.running, one.waiting) == (2, 0)


def test_clear_returns_all_and_keeps_what_had_finished():
    one = engine(100)
    one.add([work("a", 30, 20), work("b", 60, 3), work("d", 70, 4)], 0.0)
    one.advance(0.065)
    assert sorted(one.clear(0.065)) == [("a", 5), ("d", 0)]
    assert (one.running, one.waiting, one.kv_tokens) == (0, 0, 0)
    assert one.next_finish_s() == math.inf
    assert order(one.take_finished()) == ["b"]
    one.add([work("a", 30, 20)], 0.07)
    assert one.running == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            work("x", 60, 41),
            "trajectory x has 101 tokens with its prompt, expected at most the 100 that fit into the KV cache",
        ),
        (work("here"), "trajectory here is on this engine already"),
        (work("twice"), "trajectory twice is on this engine already"),
        (work("x", 0), "found 0 prompt tokens"),
        (work("x", 10, 0), "0 of 0 response tokens done"),
        (work("x", 10, 5, done=5), "5 of 5 response tokens done"),
        (work("x", 10, 5, done=-1), "-1 of 5"),
    ],
)
def test_work_that_cannot_be_is_refused_and_nothing_of_its_list_is_taken(bad, message):
    one = engine(100)
    one.add([work("here")], 0.0)
    with pytest.raises(WorkError, match=message) as caught:
        one.add([work("twice"), bad, work("after")], 0.0)
    assert isinstance(caught.value, TailraceError | ValueError)
    assert "\n" not in str(caught.value)
    assert (one.running, one.waiting) == (1, 0)
    one.add([work("twice"), work("after")], 0.0)
    one.advance(10.0)
    assert sorted(order(one.take_finished())) == ["after", "here", "twice"]


def test_numbers_that_cannot_be():
    for kwargs in ({"max_running": 0}, {"watermark": 1.0}, {"watermark": -0.1}):
        with pytest.raises(EngineError, match="expected at least 1"):
            engine(100, **kwargs)
    with pytest.raises(EngineError, match="1 tokens of KV cache"):
        engine(1)
    one = engine(100, start_s=7.0)
    for now in (6.9, math.inf, math.nan):
        with pytest.raises(EngineError, match=r"expected a finite time from 7\.0 s on"):
            one.advance(now)
    for factor in (-1.0, math.inf, math.nan):
        with pytest.raises(EngineError, match="found speed"):
            one.set_speed(factor, 8.0)
    one.advance(7.0)
