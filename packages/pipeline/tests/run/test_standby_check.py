"""Warm standbys are taken with machines of the run's own or a cluster to join, and with as many devices as trainers have."""

import pytest

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.machines import check_machines, check_standby


def config(replicas=4, processes=2, **executor):
    return RunConfig.model_validate(
        {
            "task": {"name": "chain_sum"},
            "pipeline": {"recovery": {"name": "role-based", "standby": True}},
            "rollout": {"replicas": replicas},
            "trainer": {"processes": processes},
            "executor": executor,
        }
    )


@pytest.mark.parametrize(
    "fits",
    [
        {"machines": 2, "replicas": 3},
        {"ray_address": "auto", "replicas": 3},
        {"ray_address": "auto", "replicas": 3, "trainer_gpus": 1.0, "replica_gpus": 1.0},
        {"ray_address": "auto", "replicas": 2, "trainer_gpus": 1.0, "replica_gpus": 2.0},  # one has what two ranks take
        {"ray_address": "auto", "replicas": 3, "processes": 4, "trainer_gpus": 0.5, "replica_gpus": 1.0},
    ],
)
def test_enough_stand_by(fits):
    check_standby(config(**fits))


@pytest.mark.parametrize(
    ("short", "told"),
    [
        ({}, ["pipeline.recovery.standby", "1 machine", "or a cluster to join"]),
        ({"ray_address": "auto", "replicas": 2}, ["found 2 replicas that can stand in, expected at least 3"]),
        (
            {"ray_address": "auto", "replicas": 2, "processes": 3, "trainer_gpus": 1.0, "replica_gpus": 2.0},
            ["found 2 replicas", "at least 3", "the trainer's 3 processes take (2)"],
        ),
    ],
)
def test_too_few_are_one_line(short, told):
    with pytest.raises(ConfigError) as raised:
        check_standby(config(**short))
    assert all(words in str(raised.value) for words in told)
    assert "\n" not in str(raised.value)


def test_a_cluster_of_one_machine_has_nobody_to_stand_in():
    joins = config(ray_address="auto")
    check_machines(joins, 2)
    with pytest.raises(ConfigError, match="standby': found it on a cluster of 1 machine, expected two at least"):
        check_machines(joins, 1)
    check_machines(config(machines=2), 1)  # the run's own are counted before they are there
