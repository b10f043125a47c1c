"""The seed of a trajectory's noise follows from the run's seed, its draw, its sample and its kept tokens, and nothing else."""

import dataclasses
import itertools

from tailrace.contracts import Purpose, TrajectoryRef
from tailrace.pipeline.roles.prompts import DecodingMode, SamplingTable


def sampling(run, **fields):
    ref = dataclasses.replace(TrajectoryRef("t", 0, 0, Purpose.TRAIN), **fields)
    return SamplingTable(1.0, 64, (2,), {"greedy": DecodingMode(0.0)}, run)(ref)


def test_without_a_draw_the_engine_chooses():
    assert sampling(1).seed is None
    assert sampling(1, purpose=Purpose.EVAL, mode="greedy").seed is None


def test_each_of_the_four_changes_the_seed_and_nothing_else_does():
    seeds = {
        (run, draw, sample, kept): sampling(run, draw=draw, sample=sample, kept=kept).seed
        for run, draw, sample, kept in itertools.product(range(4), range(4), range(8), (0, 1, 17, 170))
    }
    assert len(set(seeds.values())) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds.values())
    other = sampling(3, draw=2, sample=7, kept=17, trajectory="u", group=9, prompt=4)
    assert other.seed == seeds[3, 2, 7, 17]


def test_a_seed_is_the_same_on_every_machine():
    assert sampling(0, draw=0).seed == 3434107503531660146


def test_stop_tokens_end_turns_where_the_task_has_an_environment_and_the_mode_asks_it():
    modes = {"sampled": DecodingMode(1.0), "no-tool": DecodingMode(1.0, turns=False)}
    train = TrajectoryRef("t", 0, 0, Purpose.TRAIN)
    asked, alone = (dataclasses.replace(train, purpose=Purpose.EVAL, mode=mode) for mode in modes)
    table = SamplingTable(1.0, 64, (2,), modes, turns=True)
    assert [table(ref).turns for ref in (train, asked, alone)] == [True, True, False]
    assert not SamplingTable(1.0, 64, (2,), modes)(train).turns
