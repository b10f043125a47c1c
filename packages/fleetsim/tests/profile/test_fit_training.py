"""The trainer's seconds by tokens."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_machine import clock

from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.fit_costs import fit_training
from tailrace.fleetsim.profile.machine import TrainingPart
from tailrace.fleetsim.profile.samples import ClockKind, Timing, TrainerSamples, TrainingUpdate, WorkSpan

TIMING = Timing(ClockKind.PROCESS)


def updates(true, sizes, *, level=1.0, slower=1.0, at=0.0):
    made, busy = [], at
    for tokens, squares in sizes:
        spent = level * (true[0] + true[1] * tokens + true[2] * squares)
        made.append(TrainingUpdate(clock(at, busy), clock(at + slower * spent, busy + spent), tokens, squares, 8, 1))
        at, busy = at + slower * spent, busy + spent
    return made


@given(
    st.floats(0.001, 0.1),
    st.floats(1e-5, 1e-4),
    st.one_of(st.just(0.0), st.floats(1e-7, 1e-6)),
    st.floats(1.0, 1.6),
    st.integers(0, 999),
)
def test_the_shape_comes_from_sizes_and_the_level_from_the_run(fixed, per_token, per_square, level, seed):
    numbers = random.Random(seed)
    true = (fixed, per_token, per_square)
    sizes = [(n, n * numbers.randint(20, 60)) for n in (1_000, 2_000, 4_000, 9_000) for _ in range(3)]
    run = [(n, n * 40) for n in (8_000, 9_500, 9_000, 11_000, 10_000, 8_700)]
    trainer = TrainerSamples(updates=updates(true, run, level=level, slower=2.0), sizes=updates(true, sizes))
    trainer.steps = [WorkSpan(one.began, clock(one.ended.wall_s + 0.1, one.ended.process_s)) for one in trainer.updates]
    found = fit_training(trainer, TIMING)
    expected = level * (fixed + per_token * 9_000 + per_square * 9_000 * 40)
    assert found.fixed_s + found.per_token_s * 9_000 + found.per_square_token_s * 9_000 * 40 == pytest.approx(expected)
    assert found.error < 1e-6
    assert found.batch_s == pytest.approx(0.05)  # a tenth of a second passed, as slowed down as everything was


def test_no_step_is_refused():
    with pytest.raises(ProfileError, match="found no training step"):
        fit_training(TrainerSamples(), TIMING)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_what_fills_the_trainer_has_the_share_of_its_full_speed(share):
    part = TrainingPart(fixed_s=0.01, per_token_s=3e-5, per_square_token_s=4e-7, batch_s=0.03)
    tokens = part.filling_tokens(share, length=50)
    each_s = 3e-5 + 4e-7 * 50
    took_s = 0.04 + tokens * each_s
    assert tokens / took_s == pytest.approx(share / each_s)
