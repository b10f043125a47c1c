"""GPUs and shares of GPUs that no scheduler can give are refused in one line; those of the shipped configurations are not."""

import os
from pathlib import Path

import pytest

from tailrace.controller.lending import cells_on
from tailrace.pipeline.config.loading import read_toml
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.device_shares import check_shares, cores_here, judge_cell, takes_cores, trainer_group
from tailrace.pipeline.run.pools import cell_devices

ROOT = Path(__file__).parents[4]


def config(
    trainer=0.0, replica=0.0, scorer=0.0, *, processes=1, replicas=2, tp=1, colocated=False, pipeline=None, cells=1,
    judge=None, **executor,
):  # fmt: skip
    return RunConfig.model_validate(
        {
            "task": {"name": "chain_sum"},
            "pipeline": pipeline or {},
            "rollout": {"engine": "vllm", "replicas": replicas, "options": {"tensor_parallel_size": tp}},
            "trainer": {"processes": processes, "colocated": colocated, "cells": cells},
            "reward": {"judge": {"model": judge, "template": "{response}"}},
            "executor": {"trainer_gpus": trainer, "replica_gpus": replica, "scorer_gpus": scorer, **executor},
        }
    )


@pytest.mark.parametrize(
    "fits",
    [
        {},
        {"trainer": 1.0, "replica": 4.0, "tp": 4},
        {"trainer": 1.0, "replica": 0.8, "scorer": 0.2},
        {"trainer": 0.4, "replica": 0.2},
        {"trainer": 0.6, "replica": 0.4, "processes": 8, "replicas": 8, "colocated": True},
        {"trainer": 0.5, "replica": 0.5, "processes": 4, "replicas": 4, "colocated": True},
        {"replica": 0.25, "replicas": 6},
        {"trainer": 1.0, "replica": 1.0, "processes": 8},
        {"trainer": 1.0, "processes": 8, "device": "cuda"},
        {"processes": 2},
        {"device": "cuda"},
        {"trainer": 0.5, "replica": 1.0, "processes": 2, "device": "cpu"},  # no NCCL minds
        {"trainer": 1.0, "replica": 1.0, "pipeline": {"provisioning": {"name": "adaptive-tp"}}},
        {"trainer": 0.6, "replica": 0.4, "pipeline": {"provisioning": {"name": "scale-down"}}},
    ],
)
def test_what_can_be_given_is_taken(fits):
    check_shares(config(**fits))


@pytest.mark.parametrize(
    ("asks", "told"),
    [
        ({"trainer": 1.5}, ["executor.trainer_gpus", "found 1.5", "whole number"]),
        (
            {"trainer": 1.0, "replica": 0.4, "replicas": 4},
            ["executor.replica_gpus", "found 0.4 for each of 4", "a rest"],
        ),
        (
            {"trainer": 0.7, "replica": 0.4, "processes": 8, "replicas": 8, "colocated": True},
            ["executor.trainer_gpus", "beside executor.replica_gpus = 0.4"],
        ),
        ({"trainer": 0.5, "replica": 1.0, "processes": 2}, ["trainer.processes", "found 0.5 and 2", "NCCL"]),
        (
            {"trainer": 1.0, "replica": 1.0, "tp": 2},
            ["tensor_parallel_size", "found 1 GPUs for a replica that spans 2"],
        ),
        ({"trainer": 1.0, "replica": 3.0, "tp": 2}, ["tensor_parallel_size", "found 3 GPUs"]),
        (
            {"trainer": 0.6, "replica": 0.4, "pipeline": {"provisioning": {"name": "adaptive-tp"}}},
            [
                "executor.replica_gpus",
                "found 0.4 of a GPU and 'adaptive-tp', whose replicas span up to 2",
                "expected whole",
            ],
        ),
        (
            {"processes": 2, "device": "cuda"},
            [
                "executor.trainer_gpus",
                "trainer.processes",
                "found 0 and 2 on CUDA",
                "expected executor.trainer_gpus = 1",
            ],
        ),
        (
            {"trainer": 0.5, "replica": 0.5, "device": "cpu", "name": "local"},
            ["executor.name", "'local'", "executor.device", "expected 'ray'"],
        ),
    ],
)
def test_what_cannot_be_given_is_one_line(asks, told):
    with pytest.raises(ConfigError) as raised:
        check_shares(config(**asks))
    for words in told:
        assert words in str(raised.value)
    assert all(line.startswith("key") for line in str(raised.value).splitlines())


def test_ranks_and_the_replicas_that_share_their_gpus_stand_in_parts_of_one_group():
    assert trainer_group(config(1.0, 1.0)) == {}
    apart = trainer_group(config(1.0, 1.0, processes=2))
    assert {member: (part.index, part.parts) for member, part in apart.items()} == {
        ("trainer", "0"): (0, (1.0, 1.0)),
        ("trainer", "0.1"): (1, (1.0, 1.0)),
    }
    beside = trainer_group(config(0.6, 0.4, processes=2, replicas=2, colocated=True))
    assert {member: part.index for member, part in beside.items()} == {
        ("trainer", "0"): 0,
        ("trainer", "0.1"): 1,
        ("replica", "r0"): 0,
        ("replica", "r1"): 1,
    }
    assert {part.parts for part in beside.values()} == {(1.0, 1.0)}
    assert {part.strategy for part in beside.values()} == {"pack"}


@pytest.mark.parametrize(
    ("ranks", "cells", "replicas"), [(2, 2, 4), (4, 2, 2), (4, 4, 8), (4, 2, 6), (8, 2, 8), (6, 3, 3)]
)
def test_a_replica_stands_on_a_gpu_of_the_cell_that_the_controller_lends_with_it(ranks, cells, replicas):
    shares = config(
        0.4, 0.6 * min(ranks / replicas, 1), processes=ranks, replicas=replicas, colocated=True, cells=cells
    )
    group, each = trainer_group(shares), cell_devices(shares)
    for number in range(replicas):
        rank = group["replica", f"r{number}"].index
        assert cells_on((number,), each, cells) == (rank // (ranks // cells),), f"r{number} stands beside rank {rank}"


def test_a_judge_stands_beside_the_rank_with_most_room_and_its_cell_is_known(tmp_path):
    shares = {
        "trainer": 0.5,
        "replica": 0.3,
        "scorer": 0.2,
        "processes": 4,
        "replicas": 4,
        "colocated": True,
        "cells": 2,
    }
    judged = config(**shares, judge=tmp_path)
    check_shares(judged)
    group = trainer_group(judged)
    assert (group["scorer", "0"].index, group["scorer", "0"].parts) == (0, (1.0, 0.8, 0.8, 0.8))
    assert judge_cell(judged) == 0
    uneven = config(
        **{**shares, "trainer": 0.2, "replicas": 6}, judge=tmp_path
    )  # r0 and r1 beside rank 0, r2 beside rank 1
    assert (trainer_group(uneven)["scorer", "0"].index, judge_cell(uneven)) == (1, 0)
    alone = [
        config(**shares),  # no judge
        config(**{**shares, "scorer": 1.0}, judge=tmp_path),  # a device of its own
        config(**{**shares, "trainer": 0.7}, judge=tmp_path),  # no room beside a rank and its replica
        config(**{**shares, "colocated": False}, judge=tmp_path),
    ]
    for one in alone:
        assert ("scorer", "0") not in trainer_group(one)
        assert judge_cell(one) is None


def test_the_shipped_configurations_ask_for_what_can_be_given():
    tables = [read_toml(file) for file in sorted((ROOT / "configs").rglob("*.toml"))]
    asking = [table for table in tables if any(key.endswith("_gpus") for key in table.get("executor", {}))]
    assert asking
    for table in asking:
        kept = {key: table[key] for key in ("executor", "rollout", "trainer") if key in table}
        check_shares(RunConfig.model_validate({"task": {"name": "chain_sum"}, **kept}))


def test_cores_stand_for_devices_where_members_ask_for_them_on_a_cpu():
    asks = config(0.5, 0.5, device="cpu")
    assert takes_cores(asks)
    assert cores_here(asks) == len(os.sched_getaffinity(0))
    for plain in (config(0.5, 0.5), config(0.5, 0.5, device="cuda"), config(device="cpu")):
        assert not takes_cores(plain)
        assert cores_here(plain) == 0
