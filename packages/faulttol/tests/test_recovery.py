"""Recovery policies: their contract, and when each gives up."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.contracts import Cause, Failure, RecoveryAction, RecoveryPolicy
from tailrace.contracts.plugins import load, names
from tailrace.faulttol import ROLES, Isolate, RecoveryError, RestartTask, RoleBased
from tailrace.faulttol.testing import check_recovery_policy

RESTART, EVICT, FAIL = RecoveryAction.RESTART, RecoveryAction.EVICT, RecoveryAction.FAIL
EVICT_MACHINE = RecoveryAction.EVICT_MACHINE
RESTART_TASK, START_OVER = RecoveryAction.RESTART_TASK, RecoveryAction.START_OVER


def failure(role="replica", failures=1, others=0, **more):
    return Failure(role, "0", cause=Cause.DIED, failures=failures, others=others, **more)


@pytest.mark.parametrize("name", names("tailrace.recovery"))
def test_every_built_in_keeps_the_contract(name):
    check_recovery_policy(load("tailrace.recovery", name)())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "policy",
    [
        Isolate(0, 0, 0),
        Isolate(1, 5, 2),
        Isolate(machine_failures=2),
        Isolate(9, 9, 9, 1e-3, 1),
        RestartTask(1),
        RestartTask(0, 1.0),
        RoleBased(),
        RoleBased(0, 0),
        RoleBased(2, 9, 1e-3, 2),
    ],
)
@pytest.mark.cases(9)
def test_contract(policy, seed):
    check_recovery_policy(policy, seed=seed)


@dataclass
class Broken(RecoveryPolicy):
    """A policy that keeps the contract but for what a test replaces."""

    down: Any = lambda policy, failure: FAIL
    window_s: float = 60.0
    memory: list = field(default_factory=list)

    def on_down(self, failure):
        return self.down(self, failure)


def remembering(policy, failure):
    policy.memory.append(failure)
    return EVICT if failure.others and len(policy.memory) % 2 else FAIL


def meddling(policy, failure):
    failure.others = 0
    return FAIL


def test_what_keeps_the_contract_passes():
    check_recovery_policy(Broken())


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Broken(lambda p, failure: RESTART), "in a row"),
        (Broken(lambda p, failure: RecoveryAction.REPLACE), "in a row"),
        (Broken(lambda p, failure: EVICT_MACHINE if failure.machine else FAIL), "in a row"),
        (Broken(lambda p, failure: RESTART if failure.starting else FAIL), "in a row"),
        (Broken(lambda p, failure: RESTART if failure.cause is Cause.CHECKPOINT else FAIL), "in a row"),
        (Broken(lambda p, failure: RESTART if failure.role == "relay" and not failure.others else FAIL), "in a row"),
        (Broken(lambda p, failure: EVICT), "last member"),
        (Broken(lambda p, failure: EVICT_MACHINE), "although it is unknown"),
        (Broken(lambda p, failure: "restart"), "expected an action"),
        (Broken(lambda p, failure: None), "expected an action"),
        (Broken(remembering), "for the same"),
        (Broken(meddling), "on_down changed"),
        (Broken(window_s=0.0), "window_s"),
        (Broken(window_s=float("inf")), "window_s"),
    ],
)  # fmt: skip
def test_the_contract_catches(policy, words):
    with pytest.raises(AssertionError, match=words):
        check_recovery_policy(policy)


@pytest.mark.parametrize(
    ("role", "others", "actions"),
    [
        ("replica", 3, [RESTART, RESTART, EVICT, EVICT]),
        ("replica", 0, [RESTART, RESTART, FAIL, FAIL]),
        ("relay", 1, [RESTART, RESTART, EVICT, EVICT]),
        ("relay", 0, [RESTART, RESTART, FAIL, FAIL]),
        ("scorer", 0, [RESTART, RESTART, FAIL, FAIL]),
        ("trainer", 3, [RESTART, FAIL, FAIL, FAIL]),
        ("data", 0, [RESTART, RESTART, RESTART, FAIL]),
        ("stranger", 3, [FAIL, FAIL, FAIL, FAIL]),
    ],
)
def test_isolate_restarts_and_then_gives_up(role, others, actions):
    policy = Isolate(max_restarts=2, trainer_restarts=1, data_restarts=3)
    assert [policy.on_down(failure(role, count, others)) for count in (1, 2, 3, 4)] == actions


@given(st.sampled_from(ROLES), st.integers(1, 3), st.integers(0, 10_000))
def test_isolate_counts_only_what_the_member_failed_without_work_in_between(role, failures, role_failures):
    many = failure(role, failures, role_failures=role_failures, step=role_failures)
    assert Isolate().on_down(many) is RESTART


def test_isolate_gives_a_machine_up_whose_members_keep_failing():
    policy = Isolate(machine_failures=5)
    assert policy.on_down(failure(machine="m1", machine_failures=4)) is RESTART
    assert policy.on_down(failure(machine="m1", machine_failures=5)) is EVICT_MACHINE
    assert policy.on_down(failure("trainer", machine="m1", machine_failures=6)) is EVICT_MACHINE
    assert policy.on_down(failure(machine="", machine_failures=5)) is RESTART
    assert policy.on_down(failure(failures=4, others=1, machine="m1", machine_failures=5)) is EVICT
    assert Isolate().on_down(failure(machine="m1", machine_failures=500)) is RESTART


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_isolate_replaces_the_machine_of_a_fault_that_persists_once_and_then_gives_up(role, limit):
    policy = Isolate(max_restarts=limit, trainer_restarts=limit, data_restarts=limit)
    movable = role in ("replica", "relay", "trainer", "environment")
    last = EVICT if role != "trainer" and role != "data" else FAIL
    actions, moved = [], 0
    for count in range(1, 2 * limit + 4):
        where = {"stood": f"m{bool(moved):d}", "elsewhere": 2, "moved": moved}
        actions.append(policy.on_down(failure(role, count, 3, **where)))
        if actions[-1] in (EVICT, FAIL):
            break
        if actions[-1] is EVICT_MACHINE:
            moved = count
    first = [RESTART] * limit
    assert actions == ([*first, EVICT_MACHINE, *first, last] if movable else [*first, last])


def test_isolate_moves_nobody_where_there_is_no_room_and_the_member_alone_from_the_machine_of_the_store():
    exhausted = {"failures": 4, "others": 1, "stood": "m0"}
    assert Isolate().on_down(failure(**exhausted, elsewhere=0)) is EVICT
    assert Isolate().on_down(failure(**exhausted | {"others": 0})) is FAIL
    assert Isolate().on_down(failure(**exhausted | {"others": 0}, elsewhere=1)) is EVICT_MACHINE
    assert Isolate().on_down(failure(**exhausted, elsewhere=1, beside_store=True)) is RecoveryAction.REPLACE
    lost = Failure("replica", "0", cause=Cause.MACHINE, failures=4, others=1, machine="m0", stood="m0", elsewhere=1)
    assert Isolate().on_down(lost) is EVICT, "the machine is gone already, and the member failed before it was"


def test_restart_task_starts_over_whatever_fails_until_it_has_done_so_too_often():
    policy = RestartTask(max_task_restarts=2)
    for role in ROLES:
        found = [policy.on_down(failure(role, others=3, task_restarts=count)) for count in range(4)]
        assert found == [START_OVER, START_OVER, FAIL, FAIL]
    assert {RestartTask(max_task_restarts=0).on_down(failure(role, others=3)) for role in ROLES} == {FAIL}


@pytest.mark.parametrize(
    "limit",
    [
        {"trainer_restarts": -1},
        {"machine_failures": -1},
        {"window_s": 0.0},
        {"window_s": float("nan")},
        {"window_s": float("inf")},
    ],
)
def test_limits_that_make_no_sense(limit):
    [name] = limit
    with pytest.raises(RecoveryError, match=f"found {name}=.*expected"):
        Isolate(**limit)


def test_plugin_names():
    assert {"isolate", "restart-task"} <= set(names("tailrace.recovery"))
    assert load("tailrace.recovery", "isolate") is Isolate
    assert load("tailrace.recovery", "restart-task") is RestartTask
    assert load("tailrace.recovery", "role-based") is RoleBased


def test_a_hybrids_fault_is_the_trainers_where_roles_restart_alone():
    hybrid = failure(hybrid=True, others=1)
    assert RoleBased().on_down(hybrid) is RecoveryAction.RESTART_TRAINER
    assert Isolate().on_down(hybrid) is RESTART  # RollPacker's replicas share devices and are restarted alone
    assert RestartTask().on_down(hybrid) is START_OVER
    assert RoleBased(max_restarts=1).on_down(failure(hybrid=True, failures=2, others=1)) is EVICT


def test_only_a_hybrids_fault_may_be_the_trainers():
    with pytest.raises(AssertionError, match="does not stand on its devices"):
        check_recovery_policy(Broken(lambda policy, failure: RecoveryAction.RESTART_TRAINER))
