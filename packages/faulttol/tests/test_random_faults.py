"""Faults at random: as often as they should be, of whom they should be, and the same for the same randomness."""

import itertools
import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.faulttol import Fault, FaultError, FaultKind, at_steps, parse_fault, random_faults
from tailrace.faulttol.injection import LENDING, PHASES

MEMBERS = {
    "trainer": ["0"], "replica": ["r0", "r1", "r2"], "relay": ["0"], "data": ["0"], "environment": ["0", "0.worker"],
    "controller": ["0"],
}  # fmt: skip


@given(st.integers(1, 20), st.integers(1, 200), st.integers(0, 10**6))
def test_one_step_of_each_n_is_struck(every, steps, seed):
    drawn = at_steps([Fault(FaultKind.HANG, "trainer", every=every)], steps, Random(seed))
    blocks = Counter(fault.at_step // every for fault in drawn)
    assert set(blocks.values()) <= {1}
    assert len(blocks) in (steps // every, math.ceil(steps / every))
    assert all(fault.at_step < steps and fault.phase in PHASES["trainer"] and fault.phase != "load" for fault in drawn)
    assert [parse_fault(str(fault)) for fault in drawn] == drawn


def test_as_many_as_it_says_on_average():
    drawn = [len(at_steps([parse_fault("data@every7")], 10, Random(seed))) for seed in range(4000)]
    assert sum(drawn) / 4000 == pytest.approx(10 / 7, abs=0.03)


@given(st.integers(0, 10**6))
def test_a_further_fault_changes_none_before_it(seed):
    first, second = parse_fault("trainer@every3"), parse_fault("relay@every2")
    plain = parse_fault("replica@step4:decode")
    alone, both = (at_steps(faults, 12, Random(seed)) for faults in ([plain, first], [plain, first, second]))
    assert both[: len(alone)] == alone
    assert alone[0] == plain
    assert at_steps([plain, first], 30, Random(seed))[: len(alone) - 1] == alone[: len(alone) - 1]  # nor do more steps


def test_spacing_is_exponential_and_roles_are_struck_alike():
    drawn = list(itertools.islice(random_faults(MEMBERS, 15.0, Random(3), begin_s=100.0), 6000))
    times = [100.0, *(fault.at_s for fault in drawn)]
    gaps = sorted(after - before for before, after in itertools.pairwise(times))
    assert gaps[0] >= 0
    assert sum(gaps) / len(gaps) == pytest.approx(15.0, rel=0.05)
    assert gaps[len(gaps) // 2] == pytest.approx(15.0 * math.log(2), rel=0.08)
    roles = Counter(fault.role for fault in drawn)
    assert set(roles) == set(MEMBERS)
    assert max(roles.values()) < 1.25 * min(roles.values())
    assert {(fault.role, fault.member) for fault in drawn} == {(role, id_) for role in MEMBERS for id_ in MEMBERS[role]}
    assert {fault.kind for fault in drawn if fault.role == "controller"} == {FaultKind.KILL}
    phases = {(fault.role, fault.phase) for fault in drawn if fault.phase}
    assert phases == {
        (role, phase) for role, found in PHASES.items() for phase in found if phase not in {"load", *LENDING}
    }
    assert [parse_fault(str(fault)) for fault in drawn] == drawn


def test_members_are_struck_as_devices_change_hands_where_they_do():
    drawn = list(itertools.islice(random_faults(MEMBERS, 15.0, Random(4), lends=True), 3000))
    assert {fault.phase for fault in drawn if fault.phase} == {
        phase for found in PHASES.values() for phase in found if phase != "load"
    }
    steps = [at_steps([parse_fault("replica@every1")], 200, Random(2), lends=lends) for lends in (False, True)]
    assert [{fault.phase for fault in found} & LENDING for found in steps] == [set(), {"sleep", "wake"}]


def test_a_share_strikes_two_at_once():
    drawn = list(itertools.islice(random_faults(MEMBERS, 15.0, Random(5), together=0.2), 6000))
    at_once = [(first, second) for first, second in itertools.pairwise(drawn) if first.at_s == second.at_s]
    assert len(at_once) / (len(drawn) - len(at_once)) == pytest.approx(0.2, abs=0.03)
    assert all(first.role != second.role or second.phase == "load" for first, second in at_once)
    assert any(second.phase == "load" for _, second in at_once)


def test_the_same_randomness_draws_the_same():
    once, again = (list(itertools.islice(random_faults(MEMBERS, 5.0, Random(9), together=0.5), 50)) for _ in range(2))
    assert once == again


@pytest.mark.parametrize(
    ("members", "mtbf_s", "together"),
    [({}, 1.0, 0.0), ({"data": []}, 1.0, 0.0), (MEMBERS, 0.0, 0.0), (MEMBERS, math.inf, 0.0), (MEMBERS, 1.0, 1.5)],
)
def test_what_cannot_be_drawn(members, mtbf_s, together):
    with pytest.raises(FaultError, match="expected"):
        random_faults(members, mtbf_s, Random(0), together=together)
