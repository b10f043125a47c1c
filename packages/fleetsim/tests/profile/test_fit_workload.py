"""What changes while the model learns is found where it is more than chance."""

import math
import random

import pytest

from tailrace.contracts import Purpose
from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.fit_workload import fit_workload, growth, log_odds
from tailrace.fleetsim.profile.run import OTHER_PROMPTS, MeasuredRun, MeasuredTrajectory, shortened
from tailrace.pipeline.config.models import Choice, PipelineConfig, RunConfig, TrainerConfigModel
from tailrace.pipeline.config.task import TaskConfig
from tailrace.pipeline.run.build import check
from tailrace.trajstore import MixOrder


def share(odds):
    return 1 / (1 + math.exp(-odds))


@pytest.mark.parametrize("seed", range(5))
def test_shares_follow_what_happened(seed):
    numbers = random.Random(seed)
    versions = [numbers.randrange(50) for _ in range(4_000)]

    def true(version):
        return 0.6 - 0.008 * abs(version - 15)

    found = log_odds(versions, [numbers.random() < true(version) for version in versions])
    assert len(found.points) == 10
    for version in (5, 15, 25, 40):
        assert share(found.at(version)) == pytest.approx(true(version), abs=0.09)
    assert found.at(49) == found.at(5_000)
    assert found.at(0) == found.at(-5)


def test_few_groups_make_one_window():
    found = log_odds([0, 1, 2, 3], [True, False, True, False])
    assert found.points == ((1.5, 0.0),)
    assert found.at(0) == found.at(99) == 0.0


@pytest.mark.parametrize("outcome", [True, False])
def test_what_always_happens_is_near_certain(outcome):
    found = log_odds(list(range(20)) * 10, [outcome] * 200)
    assert abs(found.at(10)) > 4
    assert (found.at(10) > 0) is outcome


def test_one_version_is_one_point():
    assert len(log_odds([7] * 500, [True, False] * 250).points) == 1


def test_growth_is_found_and_chance_is_not():
    numbers = random.Random(2)
    versions = [numbers.randrange(30) for _ in range(500)]
    grown = growth(versions, [3.0 + 0.02 * v + numbers.gauss(0, 0.5) for v in versions])
    assert grown.at(20) == pytest.approx(0.4, abs=0.12)
    assert grown.at(29) == grown.at(900)
    assert growth(versions, [numbers.gauss(0, 0.5) for _ in versions]).at(25) == 0.0
    assert growth([4, 4, 4], [1.0, 2.0, 3.0]).at(9) == 0.0


def measured(groups):
    run = MeasuredRun(RunConfig(pipeline=PipelineConfig(samples_per_prompt=2)), cores=2, zero_s=0.0)
    for index, (version, members) in groups.items():
        run.prompts[index] = 10 + index
        for sample, (tokens, reward) in enumerate(members):
            run.trajectories[f"{index}.{sample}"] = MeasuredTrajectory(index, Purpose.TRAIN, version, tokens, reward)
    return run


def test_whole_groups_are_kept_and_others_are_not():
    run = measured({0: (0, [(5, 1.0), (7, 0.0)]), 1: (1, [(50, 0.0), (70, 0.0)]), 2: (1, [(5, 1.0), (6, None)])})
    run.trajectories["e0.sampled.0"] = MeasuredTrajectory(0, Purpose.EVAL, 0, 9, 1.0)
    found = fit_workload(run)
    assert found.groups == ((0, 10, (5, 7), (1.0, 0.0)), (1, 11, (50, 70), (0.0, 0.0)))
    assert found.right == 0.25
    assert found.within > 0.9
    assert dict(found.response)[1.0] == 70


def test_nothing_whole_is_refused():
    with pytest.raises(ProfileError, match="found no group with all its rewards"):
        fit_workload(measured({0: (0, [(5, None), (7, None)])}))


def test_groups_of_a_mix_keep_their_source_and_the_seconds_of_their_scores():
    run = measured({index: (0, [(5, 1.0), (7, 0.0)]) for index in range(6)})
    run.config = RunConfig(
        pipeline=PipelineConfig(samples_per_prompt=2), task=TaskConfig(mix={"chain_sum": 2, "programs": 1})
    )
    run.trajectories["4.1"].score_s = 0.25
    found = fit_workload(run)
    order = MixOrder((2, 1), shuffle_seed=run.config.seed + OTHER_PROMPTS)
    assert found.sources == tuple(order.pool(index) for index in range(6))
    assert found.score_s[4] == (0.0, 0.25)


def test_turns_are_kept_where_there_are_several():
    run = measured({index: (0, [(9, 1.0), (7, 0.0)]) for index in range(3)})
    assert fit_workload(run).turns == ()
    run.trajectories["1.0"].turns = ((4, 0.51234567), (5, 0.0))
    found = fit_workload(run)
    assert found.turns[1] == (((4, 0.5123), (5, 0.0)), ((7, 0.0),))
    assert found.turns[0] == (((9, 0.0),), ((7, 0.0),))


def test_a_run_without_rounds_and_with_one_process_to_train_is_measured():
    rounds = {
        "batching": Choice(name="tail-batching"),
        "admission": Choice(name="on-policy"),
        "training": Choice(name="streamed"),
        "provisioning": Choice(name="scale-down"),
    }
    trainer = TrainerConfigModel(processes=2, cells=2, colocated=True, options={"lr": 1e-3})
    task = TaskConfig(mix={"brief-chain-sum": 2, "programs": 1})
    short = shortened(RunConfig(task=task, pipeline=PipelineConfig(**rounds), trainer=trainer), 5)
    axes = ("batching", "admission", "training", "provisioning")
    assert [getattr(short.pipeline, axis).name for axis in axes] == ["plain", "on-policy", "full-batch", "static"]
    assert (short.trainer.processes, short.trainer.cells, short.trainer.colocated) == (1, 1, False)
    assert short.trainer.options == {"lr": 1e-3}
    check(short)
    plain = RunConfig(pipeline=PipelineConfig(batching=Choice(name="redundant"), training=Choice(name="mini-batch")))
    assert shortened(plain, 5).pipeline.batching.name == "redundant"
    assert shortened(plain, 5).pipeline.training.name == "mini-batch"


@pytest.mark.parametrize(("share", "samples"), [(0.0, 2), (0.0, 4), (0.5, 2), (0.5, 8)])
def test_samples_are_as_alike_within_a_group_as_they_were_drawn(share, samples):
    """Few samples lie nearer to their own mean than to the one that they were drawn around: that is no likeness."""
    numbers, groups = random.Random(1), {}
    for index in range(3_000):
        shared = numbers.gauss(0, 1)
        scores = [share**0.5 * shared + (1 - share) ** 0.5 * numbers.gauss(0, 1) for _ in range(samples)]
        groups[index] = (0, [(round(1_000 * math.exp(0.5 * score)), 1.0) for score in scores])
    assert fit_workload(measured(groups)).within == pytest.approx(share, abs=0.05)
