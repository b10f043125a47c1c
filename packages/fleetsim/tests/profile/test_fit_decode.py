"""Decoding and prefill out of an engine's rounds."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_machine import clock

from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.fit_costs import block_tokens, fit_decode, fit_prefill, step_s
from tailrace.fleetsim.profile.machine import DecodePart
from tailrace.fleetsim.profile.samples import ClockKind, EngineRound, Look, ReplicaSamples, Timing

TIMING = Timing(ClockKind.PROCESS)


def batches(true, seed, *, per_token_s=0.0, per_trajectory_s=0.0, noise=0.0, slower=3.0, rounds_for_prefill=1):
    """Rounds of batches that decode to their end on cores that somebody else wants too."""
    numbers = random.Random(seed)
    samples, at, busy = ReplicaSamples(kv_capacity_tokens=9_000), 0.0, 0.0
    for _ in range(12):
        left = [numbers.randint(4, 60) for _ in range(numbers.randint(1, 100))]
        context = [20] * len(left)
        fresh = True
        queued = len(left) - len(left) // rounds_for_prefill if rounds_for_prefill > 1 else 0
        while left:
            running, kv = len(left), sum(context)
            spent = step_s(true, kv, running)
            if fresh:
                spent += 20 * len(left) * per_token_s + len(left) * per_trajectory_s
            spent *= 1 + noise * numbers.uniform(-1, 1)
            since = clock(at, busy)
            at, busy = at + slower * spent, busy + spent
            new = len(left) if fresh else 0
            samples.rounds.append(
                EngineRound(since, since, clock(at, busy), running, kv, new, 20 * new, queued if fresh else 0)
            )
            fresh = False
            going = [(n - 1, c + 1) for n, c in zip(left, context, strict=True) if n > 1]
            left, context = [n for n, _ in going], [c for _, c in going]
        at += 0.5
    return samples


@settings(max_examples=15, deadline=None)
@given(
    st.floats(1e-7, 1e-6), st.floats(1e-3, 2e-2), st.floats(5e-5, 5e-4), st.floats(1e-3, 1e-2), st.integers(0, 9_999)
)
def test_the_cost_model_comes_out_whoever_else_wanted_the_cores(k1, k2, k3, k4, seed):
    true = DecodePart(k1=k1, k2=k2, k3=k3, k4=k4, kv_capacity_tokens=9_000)
    found = fit_decode([batches(true, seed)], TIMING, None)
    # Chunks hold several batch sizes, so that the turning point is a little blurred.
    for running, tokens in itertools.product((2, 20, 80), (500, 4_000)):
        assert step_s(found, tokens, running) == pytest.approx(step_s(true, tokens, running), rel=0.15)
    assert found.error < 0.05


def test_noise_is_what_the_error_says():
    true = DecodePart(k1=1e-6, k2=0.0, k3=1e-4, k4=5e-3, kv_capacity_tokens=9_000)
    found = fit_decode([batches(true, 3, noise=0.3)], TIMING, None)
    assert step_s(found, 1_000, 40) == pytest.approx(step_s(true, 1_000, 40), rel=0.1)
    assert 0.0 < found.error < 0.3


def test_prefill_is_what_rounds_took_beyond_decoding():
    true = DecodePart(k1=1e-6, k2=0.0, k3=1e-4, k4=5e-3, kv_capacity_tokens=9_000)
    samples = batches(true, 5, per_token_s=1e-4, per_trajectory_s=1e-3)
    decode = fit_decode([samples], TIMING, None)
    found = fit_prefill([samples], TIMING, decode)
    assert 20 * found.per_token_s + found.per_trajectory_s == pytest.approx(3e-3, rel=0.1)


def test_a_batch_that_others_waited_beside_was_full():
    rounds = [EngineRound(clock(i), clock(i), clock(i + 1), 32, 900 + i, 0, 0, 8) for i in range(60)]
    rounds += [EngineRound(clock(i), clock(i), clock(i + 1), 16, 500 + i, 0, 0, 0) for i in range(60, 120)]
    samples = ReplicaSamples(rounds=rounds, kv_capacity_tokens=9_000)
    assert fit_decode([samples], TIMING, None).max_running == 32
    assert fit_decode([samples], TIMING, 48).max_running == 48


def test_a_prefill_over_several_rounds_is_no_decoding():
    true = DecodePart(k1=1e-6, k2=0.0, k3=1e-4, k4=5e-3, kv_capacity_tokens=9_000)
    samples = batches(true, 5)
    slow = [
        EngineRound(clock(900.0), clock(900.0), clock(902.0), 30, 600, 90, 1_800, 60),
        EngineRound(clock(902.0), clock(902.0), clock(904.0), 60, 1_200, 0, 0, 30),
        EngineRound(clock(904.0), clock(904.0), clock(906.0), 90, 1_800, 0, 0, 0),
    ]
    before = fit_decode([samples], TIMING, None)
    samples.rounds += slow
    assert fit_decode([samples], TIMING, None) == before
    found = fit_prefill([samples], TIMING, before)
    rounds = [one for one in samples.rounds if one.fresh]
    taken = sum(found.per_token_s * one.fresh_tokens + found.per_trajectory_s * one.fresh for one in rounds)
    assert taken == pytest.approx(6.0, rel=0.05)


def test_too_few_rounds_are_refused():
    with pytest.raises(ProfileError, match=r"found 0 decoding steps to fit to, expected at least 40"):
        fit_decode([ReplicaSamples()], TIMING, None)


@given(
    st.sampled_from([1, 16, 32, 64, 128]), st.lists(st.lists(st.integers(1, 700), min_size=1), min_size=8, max_size=20)
)
def test_the_block_size_explains_what_the_engine_counts(block, held):
    looks = [Look(float(sum(-(-tokens // block) * block for tokens in one)), tuple(one)) for one in held]
    found = block_tokens(looks)
    assert [sum(-(-t // found) * found for t in look.tokens) for look in looks] == [look.used_tokens for look in looks]
