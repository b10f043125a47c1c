"""Recovery policies: their contract, when each gives up, and whom it suspects."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.contracts import (
    Cause,
    Failure,
    FleetView,
    Health,
    MemberView,
    Progress,
    Reason,
    RecoveryAction,
    Suspected,
    Why,
)
from tailrace.contracts.plugins import load, names
from tailrace.faulttol import ROLES, Isolate, RecoveryError, RestartTask
from tailrace.faulttol.testing import check_recovery_policy

RESTART, EVICT, FAIL = RecoveryAction.RESTART, RecoveryAction.EVICT, RecoveryAction.FAIL
EVICT_MACHINE = RecoveryAction.EVICT_MACHINE


def fleet(*members):
    progress = Progress(
        version=0,
        published=0,
        admitted=0,
        generating=0,
        buffered=0,
        consumed=0,
        dropped=0,
        batch_groups=1,
        last_version=9,
    )
    return FleetView({}, members, progress)


def replica(id_="0", still_s=100.0, slowest_s=0.1, phase="generating", health=Health.UP, role="replica"):
    return MemberView(role, id_, health, phase=phase, still_s=still_s, slowest_s=slowest_s, in_flight=1)


def failure(role="replica", failures=1, others=0, **more):
    return Failure(role, "0", Cause.DIED, failures=failures, others=others, **more)


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
        Isolate(9, 9, 9, 1e-3, 0, 1e-3, 1),
        RestartTask(1),
    ],
)
def test_contract(policy, seed):
    check_recovery_policy(policy, seed=seed)


@dataclass
class Broken:
    """A policy that keeps the contract but for what a test replaces."""

    down: object = lambda policy, failure: FAIL
    suspect: object = lambda policy, view: []
    window_s: float = 60.0
    memory: list = field(default_factory=list)

    def on_down(self, failure):
        return self.down(self, failure)

    def suspects(self, view):
        return self.suspect(self, view)


def suspect(member, role=None):
    return Suspected(role or member.role, member.id, Reason(Why.POLICY))


def still(view):
    return [member for member in view.members if member.still_s > 0 and member.health is Health.UP]


def remembering(policy, failure):
    policy.memory.append(failure)
    return EVICT if failure.others and len(policy.memory) % 2 else FAIL


def growing(policy, view):
    policy.memory.append(view)
    return [suspect(member) for member in still(view)[: len(policy.memory) % 2]]


def meddling(policy, failure):
    failure.others = 0
    return FAIL


def clearing(policy, view):
    for member in view.members:
        member.still_s = 0.0
    return []


def test_what_keeps_the_contract_passes():
    check_recovery_policy(Broken())
    check_recovery_policy(Broken(suspect=lambda p, view: [suspect(member) for member in still(view)]))


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
        (Broken(suspect=lambda p, view: [suspect(m) for m in view.members if m.health is Health.UP]), "did not stand"),
        (Broken(suspect=lambda p, view: [suspect(m) for m in view.members if m.still_s]), "down already"),
        (Broken(suspect=lambda p, view: [suspect(m, "trainer") for m in view.of("relay")]), "not among the members"),
        (Broken(suspect=lambda p, view: [suspect(replica("77"))]), "not among the members"),
        (Broken(suspect=lambda p, view: [suspect(m) for m in still(view)] * 2), "twice"),
        (Broken(suspect=lambda p, view: view.of("replica")), "expected Suspected"),
        (Broken(suspect=growing), "for the same .*; seed 0"),
        (Broken(suspect=clearing), "suspects changed"),
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


def test_isolate_suspects_a_replica_that_stands_still_and_says_why():
    view = fleet(replica("a", 31), replica("b", 30), replica("c", 31, slowest_s=2), replica("d", 41, slowest_s=2))
    assert Isolate().suspects(view) == [
        Suspected("replica", "a", Reason(Why.STILL, numbers={"still_s": 31, "limit_s": 30})),
        Suspected("replica", "d", Reason(Why.STILL, numbers={"still_s": 41, "limit_s": 40})),
    ]
    assert [one.id for one in Isolate(still_s=3, still_factor=1).suspects(view)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "member",
    [
        replica(phase="pulling"),
        replica(phase="idle"),
        replica(phase=""),
        replica(still_s=0.0),
        replica(role="trainer"),
        *(replica(health=health) for health in Health if health is not Health.UP),
    ],
)
def test_isolate_does_not_suspect(member):
    assert Isolate().suspects(fleet(member)) == []


def test_restart_task_fails_the_run():
    assert {RestartTask().on_down(failure(role, others=3)) for role in ROLES} == {FAIL}
    assert list(RestartTask().suspects(fleet(replica()))) == list(Isolate().suspects(fleet(replica())))


@pytest.mark.parametrize(
    "limit",
    [
        {"trainer_restarts": -1},
        {"machine_failures": -1},
        {"window_s": 0.0},
        {"still_s": 0.0},
        {"still_s": float("nan")},
        {"still_factor": -0.1},
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
