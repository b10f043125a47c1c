"""Recovery policies: their contract, and when each gives up."""

import pytest

from tailrace.contracts import RecoveryAction
from tailrace.contracts.plugins import load, names
from tailrace.faulttol import ROLES, Isolate, RecoveryError, RestartTask
from tailrace.faulttol.testing import check_recovery_policy

RESTART, EVICT, FAIL = RecoveryAction.RESTART, RecoveryAction.EVICT, RecoveryAction.FAIL


@pytest.mark.parametrize("policy", [Isolate(), Isolate(0, 0), Isolate(1, 5, 2), RestartTask()])
def test_contract(policy):
    check_recovery_policy(policy)


class Stubborn:
    def on_down(self, role, member, failures):
        return RESTART


class Ruthless:
    def on_down(self, role, member, failures):
        return EVICT


@pytest.mark.parametrize(("policy", "words"), [(Stubborn(), "in a row"), (Ruthless(), "nobody else")])
def test_the_contract_catches(policy, words):
    with pytest.raises(AssertionError, match=words):
        check_recovery_policy(policy)


@pytest.mark.parametrize(
    ("role", "actions"),
    [
        ("replica", [RESTART, RESTART, EVICT]),
        ("relay", [RESTART, RESTART, EVICT]),
        ("scorer", [RESTART, RESTART, EVICT]),
        ("trainer", [RESTART, FAIL, FAIL]),
        ("data", [FAIL, FAIL, FAIL]),
        ("stranger", [FAIL, FAIL, FAIL]),
    ],
)
def test_isolate(role, actions):
    policy = Isolate(max_restarts=2, trainer_restarts=1)
    assert [policy.on_down(role, "0", failures) for failures in (1, 2, 3)] == actions


def test_restart_task_fails_the_run():
    assert {RestartTask().on_down(role, "0", 1) for role in ROLES} == {FAIL}


def test_negative_limits():
    with pytest.raises(RecoveryError, match="trainer_restarts=-1"):
        Isolate(trainer_restarts=-1)


def test_plugin_names():
    assert {"isolate", "restart-task"} <= set(names("tailrace.recovery"))
    assert load("tailrace.recovery", "isolate") is Isolate
    assert load("tailrace.recovery", "restart-task") is RestartTask
