"""Rewards: the share that is right, and the groups without a signal."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from tailrace.fleetsim.workload import WorkloadConfig
from tailrace.fleetsim.workload.rewards import SolveRate


@pytest.mark.parametrize("mean", [0.05, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_the_mean_and_the_spread_are_the_ones_asked_for(mean: float, spread: float) -> None:
    seed, count = 3, 40_000
    generator, rate = random.Random(seed), SolveRate(mean, spread)
    shares = [rate.of(generator.gauss()) for _ in range(count)]
    assert fmean(shares) == pytest.approx(mean, abs=4 * 0.5 / math.sqrt(count)), seed
    logits = [math.log(share / (1 - share)) for share in shares]
    centre = fmean(logits)
    assert math.sqrt(fmean((one - centre) ** 2 for one in logits)) == pytest.approx(spread, abs=0.02 * spread + 1e-9)


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_all_wrong_and_all_right(mean: float) -> None:
    drawn = WorkloadConfig.model_validate({"solve_rate": {"mean": mean, "spread": 2.0}}).build(1, 1000)
    assert {one.reward for index in range(50) for one in drawn.group(index, 8)} == {mean}


@pytest.mark.parametrize(("spread", "silent"), [(0.0, 2 * 0.5**8), (1.0, 0.0879), (3.0, 0.4301)])
def test_groups_without_a_signal(spread: float, silent: float) -> None:
    """Reference: the integral of p^8 + (1-p)^8 over the logit-normal, by a rule of 800 points."""
    seed, groups = 9, 6000
    drawn = WorkloadConfig.model_validate({"solve_rate": {"mean": 0.5, "spread": spread}}).build(seed, 1000)
    sums = [sum(one.reward for one in drawn.group(index, 8)) for index in range(groups)]
    assert sum(one in (0.0, 8.0) for one in sums) / groups == pytest.approx(
        silent, abs=4 * math.sqrt(silent / groups)
    ), seed
    assert fmean(sums) / 8 == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(groups)), seed


def test_a_group_has_one_difficulty() -> None:
    seed = 2
    drawn = WorkloadConfig.model_validate({"solve_rate": {"mean": 0.5, "spread": 3.0}}).build(seed, 1000)
    first, second = zip(
        *(
            (fmean(one.reward for one in g[:20]), fmean(one.reward for one in g[20:]))
            for g in (drawn.group(i, 40) for i in range(500))
        ),
        strict=True,
    )
    a, b = fmean(first), fmean(second)
    covariance = fmean((x - a) * (y - b) for x, y in zip(first, second, strict=True))
    deviations = math.sqrt(fmean((x - a) ** 2 for x in first) * fmean((y - b) ** 2 for y in second))
    assert covariance / deviations > 0.9, seed
