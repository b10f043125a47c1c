"""Detection: its contract, each rule of the paper, and a slow reference that reads the rules off one by one."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.contracts import DetectionPolicy, Reason, Signs, Suspected, Why
from tailrace.contracts.plugins import load, names
from tailrace.faulttol import ROLES, ClusterLevel, DetectionError, RankLevel, RoleAware
from tailrace.faulttol.testing import check_detection_policy, random_signs


def replica(id_="r0", **signs):
    return Signs("replica", id_, **{"phase": "generating", "work": 1, **signs})


def trainer(**signs):
    return Signs("trainer", "0", **{"phase": "training", **signs})


def who(policy, *signs):
    return {(one.role, one.id): str(one.reason.why) for one in policy.suspects(signs)}


@pytest.mark.parametrize("name", names("tailrace.detection"))
def test_every_built_in_keeps_the_contract(name):
    check_detection_policy(load("tailrace.detection", name)())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "policy",
    [
        RoleAware(1, 0, 1, {}, 1, {"relay": 5}, 1, 1),
        RoleAware(phase_s={"training": 30, "saving": 600}),
        RankLevel(1, 1, 1),
        ClusterLevel(10, 1, 1),
    ],
)
def test_contract(policy, seed):
    check_detection_policy(policy, seed=seed)


def test_plugin_names():
    assert load("tailrace.detection", "role-aware") is RoleAware
    assert load("tailrace.detection", "rank-level") is RankLevel
    assert load("tailrace.detection", "cluster-level") is ClusterLevel


# ---- the paper's rules, section 4 -----------------------------------------------------------------------------------


def test_the_trainer_is_watched_in_its_training_phase_only():
    for phase in ("idle", "saving", "publishing", "stepping", ""):
        assert not who(RoleAware(), trainer(phase=phase, quiet_s=10_000))
    assert not who(RoleAware(), trainer(quiet_s=300))
    (found,) = RoleAware().suspects([trainer(quiet_s=301)])
    assert found == Suspected("trainer", "0", Reason(Why.STILL, numbers={"still_s": 301, "limit_s": 300}))


def test_a_phase_may_have_a_threshold_of_its_own():
    """Advantages may take longer than five minutes."""
    policy = RoleAware(phase_s={"training": 900.0, "saving": 30.0})
    assert not who(policy, trainer(quiet_s=800))
    assert who(policy, trainer(quiet_s=901))
    assert who(policy, trainer(phase="saving", quiet_s=31))
    assert policy.within_s("trainer") == 900.0


def test_a_replica_without_tokens_is_down_only_if_it_does_not_answer_or_stands_still():
    assert not who(RoleAware(), replica(quiet_s=3600))  # it answers, and says nothing of standing still
    assert not who(RoleAware(), replica(quiet_s=59, silent_s=35))
    assert who(RoleAware(), replica(quiet_s=60, silent_s=30)) == {("replica", "r0"): "silent"}
    assert who(RoleAware(), replica(still_s=61, quiet_s=61)) == {("replica", "r0"): "still"}


@pytest.mark.parametrize("phase", ["idle", "pulling"])
def test_a_replica_that_has_nothing_to_do_or_loads_weights_is_well(phase):
    assert not who(RoleAware(), replica(phase=phase, still_s=500, quiet_s=5_000))


def test_a_replica_whose_trajectories_are_all_in_tools_is_well():
    """Figure 2a: rank-level detection takes it for down, and restarts it again and again."""
    waiting = replica(phase="idle", work=0, away=8, quiet_s=3_000)
    assert not who(RoleAware(), waiting)
    assert who(RankLevel(), waiting) == {("replica", "r0"): "still"}


def test_a_slow_engine_is_not_a_broken_one():
    assert not who(RoleAware(), replica(still_s=100, slowest_s=6.0))
    assert who(RoleAware(), replica(still_s=121, slowest_s=6.0))


def test_every_role_has_a_window_of_silence_of_its_own():
    policy = RoleAware(role_silent_s={"relay": 5.0, "data": 200.0})
    for role, window_s in (("relay", 5.0), ("data", 200.0), ("scorer", 60.0), ("stranger", 60.0)):
        assert policy.within_s(role) == window_s
        assert not who(policy, Signs(role, "0", silent_s=window_s - 0.1))
        assert who(policy, Signs(role, "0", silent_s=window_s)) == {(role, "0"): "silent"}


def test_a_machine_is_down_when_nobody_there_answers():
    there = [Signs("relay", "1", "m1", silent_s=31.0), Signs("environment", "0", "m1", silent_s=30.0)]
    assert set(who(RoleAware(), *there, trainer(machine="m0"))) == {("relay", "1"), ("environment", "0")}
    assert {one.reason.who for one in RoleAware().suspects(there)} == {"m1"}
    assert not who(RoleAware(), *there, replica(machine="m1"))  # somebody does
    assert not who(RoleAware(), there[0])  # one member alone says nothing of its machine


def test_cluster_level_notices_nothing_while_anybody_computes():
    """Figure 2b: the trainer's network failure stays unnoticed until the long tail of rollouts is over."""
    hung = trainer(silent_s=3_000, quiet_s=3_000)
    assert not who(ClusterLevel(), hung, replica("r0", quiet_s=2_000), replica("r1", quiet_s=1.0))
    assert len(who(ClusterLevel(), hung, replica("r0", quiet_s=301), replica("r1", quiet_s=301))) == 3


# ---- against a slow reference -----------------------------------------------------------------------------------------


def by_the_rules(policy, signs):
    """Who is down, by each rule on its own, for one member after the other."""
    down = set()
    for one in signs:
        window_s = dict(policy.role_silent_s).get(one.role, policy.silent_s)
        suspect = (
            one.role == "replica"
            and one.phase != "pulling"
            and (one.quiet_s >= policy.replica_s or one.silent_s >= policy.replica_s)
        )
        no_answer = one.silent_s >= window_s or (suspect and one.silent_s >= policy.heartbeat_s)
        slow_s = policy.slow_factor * one.slowest_s
        hung = one.role == "replica" and one.phase == "generating" and one.work > 0
        hung = hung and one.still_s > policy.replica_s and one.still_s > slow_s
        stuck = one.role == "trainer" and one.phase in policy.phase_s
        stuck = stuck and one.quiet_s > policy.phase_s[one.phase] and one.quiet_s > slow_s
        here = [other for other in signs if other.machine == one.machine != ""]
        machine = len(here) > 1 and all(other.silent_s >= policy.machine_s for other in here)
        if no_answer or hung or stuck or machine:
            down.add((one.role, one.id))
    return down


windows = st.sampled_from([1.0, 10.0, 30.0, 60.0, 300.0])
policies = st.builds(
    RoleAware,
    replica_s=windows,
    slow_factor=st.sampled_from([0.0, 1.0, 20.0]),
    heartbeat_s=windows,
    phase_s=st.dictionaries(st.sampled_from(["training", "saving"]), windows),
    silent_s=windows,
    role_silent_s=st.dictionaries(st.sampled_from(ROLES), windows),
    machine_s=windows,
)


@settings(max_examples=200, deadline=None)
@given(policies, st.integers(0, 10_000))
def test_role_aware_equals_its_rules(policy, seed):
    signs = random_signs(Random(seed))
    assert {(one.role, one.id) for one in policy.suspects(signs)} == by_the_rules(policy, signs)


@settings(max_examples=100, deadline=None)
@given(policies, st.integers(0, 10_000), st.floats(0, 1e3))
def test_who_is_suspected_stays_suspected_as_it_gets_older(policy, seed, more_s):
    signs = random_signs(Random(seed))
    older = [
        replace(
            one,
            silent_s=one.silent_s and one.silent_s + more_s,
            still_s=one.still_s and one.still_s + more_s,
            quiet_s=one.quiet_s and one.quiet_s + more_s,
        )
        for one in signs
    ]
    assert {(one.role, one.id) for one in policy.suspects(signs)} <= {
        (one.role, one.id) for one in policy.suspects(older)
    }


# ---- the contract suite finds -----------------------------------------------------------------------------------------


@dataclass
class Broken(DetectionPolicy):
    """A policy that keeps the contract but for what a test replaces."""

    suspect: Any = lambda policy, signs: RoleAware().suspects(signs)
    look_s: float = 5.0
    within: Any = RoleAware().within_s
    memory: list = field(default_factory=list)

    def suspects(self, signs):
        return self.suspect(self, signs)

    def within_s(self, role):
        return self.within(role)


def suspect(one, why=Why.POLICY):
    return Suspected(one.role, one.id, Reason(why))


def remembering(policy, signs):
    policy.memory.append(signs)
    return [suspect(one) for one in signs if one.silent_s > 60][: len(policy.memory) % 2]


def clearing(policy, signs):
    signs.clear()
    return []


def test_what_keeps_the_contract_passes():
    check_detection_policy(Broken())


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Broken(look_s=0.0), "look_s"),
        (Broken(within=lambda role: 0.0), "within_s"),
        (Broken(lambda p, signs: []), "not suspected after"),
        (Broken(lambda p, signs: [suspect(one) for one in signs if one.role != "data"]), "just moved|with nobody"),
        (Broken(lambda p, signs: [suspect(one) for one in signs if one.silent_s > 60 < len(signs)]), "not suspected"),
        (Broken(lambda p, signs: [suspect(replica("r99"))]), "not among"),
        (Broken(lambda p, signs: [suspect(one) for one in signs if one.silent_s > 60] * 2), "twice"),
        (Broken(lambda p, signs: [suspect(one, Why.STILL) for one in signs if one.silent_s > 60]), "still_s"),
        (Broken(lambda p, signs: [one for one in signs if one.silent_s > 60]), "expected Suspected"),
        (Broken(remembering), "for the same"),
        (Broken(clearing), "suspects changed"),
    ],
)  # fmt: skip
def test_the_contract_catches(policy, words):
    with pytest.raises(AssertionError, match=words):
        check_detection_policy(policy)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RoleAware(replica_s=0),
        lambda: RoleAware(heartbeat_s=-1),
        lambda: RoleAware(slow_factor=-1),
        lambda: RoleAware(phase_s={"training": 0}),
        lambda: RoleAware(role_silent_s={"data": float("inf")}),
        lambda: RoleAware(look_s=float("nan")),
        lambda: RankLevel(device_s=0),
        lambda: ClusterLevel(silent_s=0),
    ],
)
def test_windows_that_make_no_sense(make):
    with pytest.raises(DetectionError, match=r"found \w+=.*expected a number"):
        make()
