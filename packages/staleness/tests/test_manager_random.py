"""The manager beside its reference under seeded random operations. TAILRACE_STATEFUL_OPS sets how many."""

import os
import random

import pytest

from tailrace.staleness.buffers import Slots
from tailrace.staleness.testing.beside import BesideReference

OPERATIONS = int(os.environ.get("TAILRACE_STATEFUL_OPS", "40000"))
PER_SEED = 1000


def drive(seed, operations):
    numbers = random.Random(seed)
    size = numbers.choice([1, 1, 2, 3])
    beside = BesideReference(
        bound=numbers.choice([0, 1, 1, 2, 3, 5]),
        batch_size=numbers.choice([1, 2, 3, 4]),
        surplus=numbers.choice([0, 0, 0, 1, 2]),
        needed=numbers.randint(1, size),
        size=size,
    )
    for step in range(operations):
        try:
            beside.random_step(numbers)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}: {error}") from error
    return beside


@pytest.mark.timeout(0 if OPERATIONS > 100_000 else 300)
def test_random_operations_agree_with_the_reference_and_keep_the_bound():
    consumed = oldest = 0
    for seed in range(max(1, OPERATIONS // PER_SEED)):
        beside = drive(seed, min(PER_SEED, OPERATIONS))
        consumed += beside.manager.version
        oldest = max(oldest, beside.oldest)
    # The drive must reach what it is there for: many batches, and trajectories as old as a bound allows.
    assert consumed > OPERATIONS / 200
    assert oldest == 5 or OPERATIONS < 20_000


def _one_step(slots, hole):
    for source in range(hole):
        if slots.ready >> source & 1:
            continue
        for deadline in range(hole, slots.bound + 1):
            if slots.holds[deadline] >> source & 1:
                slots.shift_reserved(source, hole, deadline)
                return source
    return hole


def _none(slots, hole):
    return hole


def drive_twenty():
    for seed in range(20):
        drive(seed, 500)


@pytest.mark.parametrize("broken", [_one_step, _none])
def test_a_movement_that_stops_early_is_found(monkeypatch, broken):
    """The B to C chain of Figure 7 repeats to exhaustion."""
    monkeypatch.setattr(Slots, "fill_hole", broken)
    with pytest.raises(AssertionError, match="seed"):
        drive_twenty()
