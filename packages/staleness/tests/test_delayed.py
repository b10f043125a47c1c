"""Groups that training waits for while others could take their places (StaleFlow, section 4.3)."""

import random

import pytest

from tailrace.staleness import LimitError, StalenessManager
from tailrace.staleness.bounded import Bounded

SEEDS = range(60)
STEPS = 120


def _copy(manager):
    return StalenessManager.from_state(manager.to_state())


def _ready_without(manager, keys):
    """Whether the earliest buffer is ready once these are dropped, tried on a copy."""
    copy = _copy(manager)
    for key in keys:
        copy.abort(key)
    return copy.ready()


def _drop(manager, running, keys):
    for key in keys:
        manager.abort(key)
        running.remove(key)


def test_the_batch_is_ready_without_them_and_not_without_fewer():
    seen = 0
    for seed in SEEDS:
        numbers = random.Random(seed)
        surplus = numbers.choice([0, 0, 1])
        manager = StalenessManager(numbers.choice([0, 1, 2, 3]), numbers.choice([1, 2, 4]), 0, surplus)
        running, key = [], 0
        for step in range(STEPS):
            where = f"seed {seed}, step {step}: {manager.describe()}"
            if manager.ready() and numbers.random() < 0.7:
                manager.consume()
            elif manager.can_reserve(manager.version) and (not running or numbers.random() < 0.5):
                manager.reserve(key, manager.version)
                running.append(key)
                key += 1
            elif running:  # the first take longest
                manager.occupy(running.pop(numbers.randrange(len(running) // 2, len(running))))
            _drop(manager, running, manager.surplus())
            delayed = manager.delayed()
            if not delayed:
                first = [entry.key for entry in manager.entries(manager.version) if not entry.occupied]
                assert manager.ready() or not _ready_without(manager, first), where
                continue
            seen += 1
            assert not manager.ready(), where
            assert _ready_without(manager, delayed), where
            assert not _ready_without(manager, delayed[1:]), where
            if numbers.random() < 0.3:
                _drop(manager, running, delayed)
                _drop(manager, running, manager.surplus())
    assert seen > 100, seen


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf")])
def test_a_patience_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(LimitError, match="patience_s"):
        Bounded(patience_s=wrong)
