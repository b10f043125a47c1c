"""The closed form against one step at a time, over random work, limits, removals and speeds.

Tokens, order, preemptions and places agree exactly; times and integrals to 1e-9 relative (both round differently).
"""

from itertools import count

import pytest
from engine_costs import TICK_S, Decode, NoPrefill, Prefill, work, works
from engine_reference import ReferenceEngine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.fleetsim.engine import ModelledEngine

SPEEDS = st.sampled_from([0.0, 0.3, 0.5, 1.0, 2.5])


@st.composite
def scenarios(draw):
    capacity = draw(st.sampled_from([45, 60, 90, 150, 400]))
    kwargs = {
        "max_running": draw(st.sampled_from([1, 2, 5, 30])),
        "watermark": draw(st.sampled_from([0.0, 0.01, 0.1])),
    }
    decode = Decode(capacity, draw(st.sampled_from([0.0, 1.23457e-5, 1.23457e-3])))
    prefill = draw(st.sampled_from([Prefill(), NoPrefill()]))
    names, calls = count(), []
    for _ in range(draw(st.integers(1, 14))):
        ticks = draw(st.integers(1, 150))
        kind = draw(st.sampled_from(["add", "add", "add", "remove", "remove", "clear", "speed", "speed", "look"]))
        detail = None
        if kind == "add":
            detail = draw(works(names, capacity))
        elif kind == "remove":
            detail = draw(st.lists(st.integers(0, 40).map(str), max_size=5))
        elif kind == "speed":
            detail = draw(SPEEDS)
        calls.append((ticks, kind, detail))
    return decode, prefill, kwargs, calls


def close(x):
    return pytest.approx(x, rel=1e-9, abs=1e-9)


def compare(engine, reference, finished):
    finished += engine.take_finished()
    assert [(name, tokens) for _, name, tokens in finished] == [
        (name, tokens) for _, name, tokens in reference.finished
    ]
    assert [when for when, _, _ in finished] == close([when for when, _, _ in reference.finished])
    assert (engine.running, engine.waiting) == (len(reference.batch), len(reference.queue))
    assert (engine.kv_tokens, engine.tokens, engine.preemptions) == (
        reference.kv_tokens,
        reference.tokens,
        reference.preemptions,
    )
    for name in ("prefill_s", "decode_s", "kv_share_s", "running_s"):
        assert getattr(engine, name) == close(getattr(reference, name)), name
    assert engine.busy_s == close(reference.prefill_s + reference.decode_s)


@settings(deadline=None, max_examples=600, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_equals_a_walk_over_the_steps(scenario):
    decode, prefill, kwargs, calls = scenario
    engine, reference = ModelledEngine(decode, prefill, **kwargs), ReferenceEngine(decode, prefill, **kwargs)
    now, finished = 0.0, []
    for ticks, kind, detail in calls:
        now += ticks * TICK_S
        engine.advance(now)
        reference.advance(now)
        compare(engine, reference, finished)
        if kind == "add":
            engine.add(detail, now)
            reference.add(detail, now)
        elif kind == "remove":
            assert engine.remove(detail, now) == reference.remove(detail, now)
        elif kind == "clear":
            assert sorted(engine.clear(now)) == sorted(reference.remove(reference.ids, now))
        elif kind == "speed":
            engine.set_speed(detail, now)
            reference.set_speed(detail, now)
    now += TICK_S
    engine.set_speed(1.7, now)
    reference.set_speed(1.7, now)
    engine.advance(now + 1000)
    reference.advance(now + 1000)
    compare(engine, reference, finished)
    assert not engine.running + engine.waiting


@pytest.mark.parametrize("capacity", [2000, 5000, 100_000])
def test_a_longer_run(capacity):
    decode, kwargs = Decode(capacity), {"max_running": 20}
    engine, reference = ModelledEngine(decode, Prefill(), **kwargs), ReferenceEngine(decode, Prefill(), **kwargs)
    for wave in range(5):
        made = [work(f"{wave}.{i}", 20 + i % 7, 30 + (i * i * 37 + wave) % 400) for i in range(40)]
        engine.add(made, wave * 3.1)
        reference.add(made, wave * 3.1)
    engine.advance(1e4)
    reference.advance(1e4)
    compare(engine, reference, [])
    assert len(reference.finished) == 200
    assert (reference.preemptions > 10) == (capacity == 2000)
