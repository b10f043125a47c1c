import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.fleetsim.engine.state import kv_token_s, steps_s, steps_within

batch = {
    "running": st.integers(1, 1000),
    "extra": st.integers(0, 10**6),
    "fixed_s": st.floats(1e-6, 1.0),
    "per_token_s": st.sampled_from([0.0, 1e-12, 2.3e-8, 1e-3]),
    "steps": st.integers(0, 300),
}


def costs(running, extra, fixed_s, per_token_s):
    kv = running + extra
    return kv, fixed_s + per_token_s * kv, 0.5 * per_token_s * running


@given(**batch)
def test_seconds_and_integral_are_the_sums_over_the_steps(running, extra, fixed_s, per_token_s, steps):
    kv, first_s, growth_s = costs(running, extra, fixed_s, per_token_s)
    each = [(kv + running * k, fixed_s + per_token_s * (kv + running * k)) for k in range(steps)]
    seconds = steps_s(steps, first_s, growth_s)
    assert seconds == pytest.approx(sum(step_s for _, step_s in each), rel=1e-12)
    integral = kv_token_s(running, kv, steps, seconds, growth_s)
    assert integral == pytest.approx(sum(tokens * step_s for tokens, step_s in each), rel=1e-11)


@given(**batch, share=st.floats(0, 1, exclude_max=True))
def test_the_inverse_rounds_down(running, extra, fixed_s, per_token_s, steps, share):
    _, first_s, growth_s = costs(running, extra, fixed_s, per_token_s)
    at, then = steps_s(steps, first_s, growth_s), steps_s(steps + 1, first_s, growth_s)
    between = min(at + share * (then - at), then * (1 - 1e-15))
    assert steps_within(at, first_s, growth_s, 10**6) == steps
    assert steps_within(math.nextafter(at, 0.0), first_s, growth_s, 10**6) == max(steps - 1, 0)
    if between < then:
        assert steps_within(between, first_s, growth_s, 10**6) == steps
        assert steps_within(between, first_s, growth_s, steps // 2) == steps // 2


def test_nothing_is_done_before_the_first_step():
    assert steps_within(-1.0, 0.01, 0.0, 5) == steps_within(0.0, 0.01, 0.0, 5) == steps_within(9.0, 0.01, 0.0, 0) == 0
