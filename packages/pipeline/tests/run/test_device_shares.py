"""GPUs and shares of GPUs that no scheduler can give are refused in one line; those of the shipped configurations are not."""

import os
from pathlib import Path

import pytest

from tailrace.pipeline.config.loading import read_toml
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.device_shares import check_shares, cores_here, takes_cores, trainer_group

ROOT = Path(__file__).parents[4]


def config(
    trainer=0.0, replica=0.0, scorer=0.0, *, processes=1, replicas=2, tp=1, colocated=False, pipeline=None, **executor
):
    return RunConfig.model_validate(
        {
            "task": {"name": "chain_sum"},
            "pipeline": pipeline or {},
            "rollout": {"engine": "vllm", "replicas": replicas, "options": {"tensor_parallel_size": tp}},
            "trainer": {"processes": processes, "colocated": colocated},
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
