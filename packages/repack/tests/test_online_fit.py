"""The fit of costs in a run: to steps whose times scatter, with an error that is measured on steps that it has not seen."""

import itertools
import math
import random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.contracts import Snapshot
from tailrace.repack import FitError, OnlineFit, ThroughputModel
from tailrace.repack.online_fit import fit_relative, held_out_errors
from tailrace.repack.throughput import least_squares, nonnegative_least_squares

OWN = ThroughputModel(2e-7, 8e-3, 1e-4, 4e-3)  # turns compute-bound at 80
GRID = [(kv, running) for kv in (0.0, 1e5, 4e5) for running in (1, 16, 80, 120, 200)]


def exact(numbers, own):
    return own


def uniform(share):
    return lambda numbers, own: own * numbers.uniform(1 - share, 1 + share)


def busy(numbers, own):
    """A machine that others use: half to twice as long, and a tenth of the steps three times."""
    return own * math.exp(numbers.gauss(0, 0.4)) * (3 if numbers.random() < 0.1 else 1)


def steps(count, takes, seed):
    numbers = random.Random(seed)
    found = []
    for _ in range(count):
        kv, running = numbers.random() * 4e5, numbers.randint(1, 200)
        found.append((kv, running, takes(numbers, OWN.step_latency_s(kv, running))))
    return found


def off(model):
    """How far a model is from the truth, in the median."""
    return median(abs(model.step_latency_s(*at) / OWN.step_latency_s(*at) - 1) for at in GRID)


@pytest.mark.parametrize("seed", range(6))
def test_exact_times_give_the_model_back(seed):
    assert off(fit_relative(steps(60, exact, seed))) < 2e-3


@pytest.mark.parametrize(("takes", "most"), [(uniform(0.1), 0.03), (uniform(0.2), 0.06)])
def test_it_is_as_good_as_least_squares_where_times_scatter_little(takes, most):
    own, plain = [], []
    for seed in range(6):
        samples = steps(90, takes, seed)
        own.append(off(fit_relative(samples)))
        plain.append(off(ThroughputModel.fit(samples)))
    assert median(own) <= median(plain) + 0.005
    assert max(own) < most


def test_it_is_far_better_on_a_busy_machine():
    own, plain = [], []
    for seed in range(6):
        samples = steps(90, busy, seed)
        own.append(off(fit_relative(samples)))
        try:
            plain.append(off(ThroughputModel.fit(samples)))
        except FitError:
            plain.append(math.inf)
    assert median(own) < 0.15
    assert median(own) < median(plain) / 2


def test_the_error_is_of_steps_that_were_left_out():
    """It is nothing where times are exact, small where only single steps scatter, and large where nothing explains them."""
    assert max(held_out_errors(steps(90, exact, 1))) < 5e-3
    error, scatter = held_out_errors(steps(96, busy, 2))
    assert error < 0.3 < scatter
    wild = [
        (kv, running, math.exp(random.Random(at).uniform(-9, 1)))
        for at, (kv, running, _) in enumerate(steps(96, exact, 3))
    ]
    assert held_out_errors(wild)[0] > 0.4
    drifting = [(kv, running, took * (1 + at / 12)) for at, (kv, running, took) in enumerate(steps(96, exact, 4))]
    assert held_out_errors(drifting)[0] > 0.2  # the run of now is not that of then


def test_steps_that_are_all_alike_give_no_more_than_they_say():
    model = fit_relative([(1e4, 8, 0.02)] * 30)
    assert model.step_latency_s(1e4, 8) == pytest.approx(0.02)
    assert fit_relative([(0.0, 8, 0.02 + 1e-3 * (at % 3)) for at in range(30)]).step_latency_s(0, 8) == pytest.approx(
        0.021, rel=0.02
    )


def test_a_fit_is_due_at_each_doubling_and_says_its_errors():
    fit, found = OnlineFit(), []
    for at, (kv, running, took) in enumerate(steps(100, busy, 5)):
        for _ in range(2):
            fit.take(Snapshot(f"r{at}", kv / 4e5, running, 0, 0, 0, 0, running / took, 400_000))
        if (one := fit.refit()) is not None:
            found.append(one)
    assert [one.samples for one in found] == [20, 40, 80]
    assert found[-1].usable
    assert found[-1].error < found[-1].scatter
    assert fit.last == found[-1]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_coefficients_of_at_least_0_are_those_of_the_best_set_of_columns(seed):
    numbers = random.Random(seed)
    rows = [[numbers.gauss(1, 1) * 10**column for column in range(4)] for _ in range(9)]
    targets = [numbers.gauss(1, 2) for _ in rows]

    def error(found):
        return sum(
            (sum(a * b for a, b in zip(found, row, strict=True)) - y) ** 2 for row, y in zip(rows, targets, strict=True)
        )

    least = error([0.0] * 4)
    for count in range(1, 5):
        for chosen in itertools.combinations(range(4), count):
            found = least_squares([[row[column] for column in chosen] for row in rows], targets)
            if found is not None and min(found) >= 0:
                values = dict(zip(chosen, found, strict=True))
                least = min(least, error([values.get(column, 0.0) for column in range(4)]))
    found = nonnegative_least_squares(rows, targets) or [0.0] * 4
    assert min(found) >= 0
    assert error(found) == pytest.approx(least, rel=1e-9), f"seed {seed}"


@pytest.mark.parametrize("rows", [[], [[0.0, 0.0]], [[-1.0]]])
def test_columns_that_determine_nothing(rows):
    assert nonnegative_least_squares(rows, [1.0] * len(rows)) is None
