"""Which faults could never strike, and what those at random draw."""

import itertools

import pytest

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.scripted_faults import build_faults, check_faults, further_faults


def check(fault, adds):
    check_faults(RunConfig.model_validate({"rollout": {"replicas": 2}, "faults": (fault,)}), lambda: adds)


@pytest.mark.parametrize("fault", ["replica:r5@60s", "stall:replica:2@step3"])
def test_a_replica_that_may_join_later_may_be_struck(fault):
    check(fault, adds=True)
    with pytest.raises(ConfigError, match="expected one of r0, r1"):
        check(fault, adds=False)


@pytest.mark.parametrize("fault", ["replica:first@60s", "relay:7@60s"])
def test_what_no_member_is_ever_called_is_refused(fault):
    with pytest.raises(ConfigError, match="expected one of"):
        check(fault, adds=True)


def config(*faults, steps=10, **changes):
    return RunConfig.model_validate({"pipeline": {"steps": steps}, "faults": faults, **changes})


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("machine@5s", "found no machine of this run's own, expected executor.machines = 2 or more"),
        ("environment:worker@5s", "found no environment in this run"),
        ("controller:1@5s", "found controller '1', expected no id"),
        ("trainer@every11", "found once in 11 steps, expected at most pipeline.steps = 10"),
        ("trainer@step10:fetch", "found step 10, expected one below pipeline.steps = 10"),
        ("trainer@step3:load", "found no other fault of the trainer, expected one before it"),
    ],
)
def test_what_could_never_strike_is_refused(fault, words):
    with pytest.raises(ConfigError, match=words) as error:
        check_faults(config(fault), lambda: False)
    assert str(error.value).startswith(f"key 'faults': {fault}: ")
    assert "\n" not in str(error.value)


PEER = {"domains": ["disk", "peer"]}


@pytest.mark.parametrize(
    ("fault", "words", "changes"),
    [
        ("machine:3@5s", "found machine '3', expected one of 0, 1, 2", {"checkpoint": PEER}),
        ("hang:machine:0@5s", "found hang of a machine, expected kill", {"checkpoint": PEER}),
        ("machine:0@5s", "found checkpoints on the trainer's disk only", {}),
    ],
)
def test_a_machine_that_could_not_be_struck_or_whose_loss_could_not_be_survived_is_refused(fault, words, changes):
    three = {"executor": {"machines": 3}, **changes}
    with pytest.raises(ConfigError, match=words):
        check_faults(config(fault, **three), lambda: False)


def test_the_last_machine_lives():
    three = {"executor": {"machines": 3}, "checkpoint": PEER}
    check_faults(config("machine@step2", "machine:1@step4", **three), lambda: False)
    with pytest.raises(ConfigError, match="found 4 faults of 3 machines, expected at most 2"):
        check_faults(config("machine@every3", **three), lambda: False)


@pytest.mark.parametrize(
    "faults", [["trainer@every10"], ["controller@5s"], ["trainer@step1", "trainer@step3:load"], ["raise:data@step2"]]
)
def test_what_can_strike_is_taken(faults):
    check_faults(config(*faults), lambda: False)


def test_a_worker_of_an_environment_is_named_with_it():
    tool = {"task": {"name": "tool-sums"}, "environment": {"members": 2}}
    check_faults(config("environment:worker@5s", "environment:1.worker@step2:tool", **tool), lambda: False)
    with pytest.raises(ConfigError, match=r"found environment '2.worker', expected one of 0.worker, 1.worker"):
        check_faults(config("environment:2.worker@5s", **tool), lambda: False)


def test_steps_are_drawn_with_the_seed_of_faults():
    faults = ("trainer@every3", "replica@5s")
    drawn = [str(fault) for fault in build_faults(config(*faults))]
    assert drawn == [str(fault) for fault in build_faults(config(*faults))]
    assert drawn[-1] == "replica@5s"
    assert all(text.startswith("trainer@step") for text in drawn[:-1])
    assert drawn != [str(fault) for fault in build_faults(config(*faults, fault_seed=1))]


def test_faults_at_random_strike_members_of_the_run_only():
    assert list(further_faults(config())) == []
    struck = list(itertools.islice(further_faults(config(mtbf_s=10.0, rollout={"replicas": 2}), 50.0), 300))
    assert {fault.role for fault in struck} == {"data", "scorer", "trainer", "relay", "replica"}
    assert {fault.member for fault in struck if fault.role == "replica"} == {"r0", "r1"}
    assert all(fault.at_s > 50.0 for fault in struck)
