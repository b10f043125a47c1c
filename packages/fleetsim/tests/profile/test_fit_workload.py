"""What changes while the model learns is a trend if it is more than chance."""

import math
import random

import pytest

from tailrace.contracts import Purpose
from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.fit_workload import fit_workload, linear_trend, logistic_trend
from tailrace.fleetsim.profile.run import Measured, Trajectory
from tailrace.pipeline.config.models import PipelineConfig, RunConfig


@pytest.mark.parametrize("slope", [-0.05, 0.04, 0.1])
def test_a_slope_of_the_log_odds_is_found(slope):
    numbers = random.Random(1)
    versions = [numbers.randrange(30) for _ in range(4_000)]
    outcomes = [numbers.random() < 1 / (1 + math.exp(-(0.5 + slope * v))) for v in versions]
    found = logistic_trend(versions, outcomes, 60)
    assert found.per_version == pytest.approx(slope, abs=0.012)
    assert found.at(0) == pytest.approx(0.5, abs=0.2)
    assert found.at(60) == found.at(600)


def test_chance_is_no_trend():
    flat = 0
    for seed in range(40):
        numbers = random.Random(seed)
        versions = [numbers.randrange(20) for _ in range(300)]
        found = logistic_trend(versions, [numbers.random() < 0.3 for _ in versions], 40)
        flat += found.per_version == 0.0
        assert 1 / (1 + math.exp(-found.at(10))) == pytest.approx(0.3, abs=0.09), seed
    assert flat >= 34  # one in twenty is taken for a trend


@pytest.mark.parametrize("outcome", [True, False])
def test_what_always_happens_has_no_slope(outcome):
    found = logistic_trend(list(range(20)), [outcome] * 20, 40)
    assert found.per_version == 0.0
    assert (found.start > 0) is outcome


def test_outcomes_that_a_version_separates_have_no_maximum():
    assert logistic_trend(list(range(20)), [v >= 10 for v in range(20)], 40).per_version == 0.0


def test_growth_is_found_and_chance_is_not():
    numbers = random.Random(2)
    versions = [numbers.randrange(30) for _ in range(500)]
    grown = linear_trend(versions, [3.0 + 0.02 * v + numbers.gauss(0, 0.5) for v in versions], 60)
    assert grown.per_version == pytest.approx(0.02, abs=0.006)
    assert linear_trend(versions, [numbers.gauss(0, 0.5) for _ in versions], 60).per_version == 0.0
    assert linear_trend([4, 4, 4], [1.0, 2.0, 3.0], 8).per_version == 0.0


def measured(groups):
    run = Measured(RunConfig(pipeline=PipelineConfig(samples_per_prompt=2)), cores=2, zero_s=0.0)
    for index, (version, members) in groups.items():
        run.prompts[index] = 10 + index
        for sample, (tokens, reward) in enumerate(members):
            run.trajectories[f"{index}.{sample}"] = Trajectory(index, Purpose.TRAIN, version, tokens, reward)
    return run


def test_whole_groups_are_kept_and_others_are_not():
    run = measured({0: (0, [(5, 1.0), (7, 0.0)]), 1: (1, [(50, 0.0), (70, 0.0)]), 2: (1, [(5, 1.0), (6, None)])})
    run.trajectories["e0.sampled.0"] = Trajectory(0, Purpose.EVAL, 0, 9, 1.0)
    found = fit_workload(run)
    assert found.groups == ((0, 10, (5, 7), (1.0, 0.0)), (1, 11, (50, 70), (0.0, 0.0)))
    assert found.right == 0.25
    assert found.within > 0.9
    assert dict(found.response)[1.0] == 70


def test_nothing_whole_is_refused():
    with pytest.raises(ProfileError, match="found no group with all its rewards"):
        fit_workload(measured({0: (0, [(5, None), (7, None)])}))
