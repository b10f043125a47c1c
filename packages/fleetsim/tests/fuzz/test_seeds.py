"""200 seeds hold: random pipelines, fleets and faults, the invariants checked at every event."""

import pytest

from tailrace.contracts import plugins
from tailrace.fleetsim.fuzz.campaign import Summary, fuzz
from tailrace.fleetsim.fuzz.case import POLICIES
from tailrace.fleetsim.fuzz.draw import draw_case
from tailrace.fleetsim.fuzz.faults import FaultKind
from tailrace.fleetsim.fuzz.options import OPTIONS

SEEDS = 200


@pytest.fixture(scope="module")
def summary():
    return fuzz(range(SEEDS))


def test_the_invariants_hold(summary: Summary):
    told = [f"{failure}\ntailrace fuzz --seeds 1 --first-seed {seed}" for seed, failure in summary.failures.items()]
    assert not told, "\n\n".join(told)
    assert summary.seeds == SEEDS


def test_every_policy_and_every_fault_has_its_turn(summary: Summary):
    drawn = set(summary.covered["policies"])
    assert drawn == {f"{axis} {name}" for axis in POLICIES for name in plugins.names(f"tailrace.{axis}")}
    assert set(summary.covered["faults"]) == {str(kind) for kind in FaultKind}


def test_what_is_hard_to_get_right_does_happen(summary: Summary):
    happened = summary.covered["happened"]
    assert {what for what, count in happened.items() if not count} == set()
    assert summary.ended["finished"] > SEEDS / 2
    assert summary.ended["gave up"] > 0


def test_every_registered_policy_can_be_drawn():
    for axis in POLICIES:
        assert set(plugins.names(f"tailrace.{axis}")) <= set(OPTIONS[axis]), f"tailrace fuzz never draws from {axis}"


def test_the_same_seed_draws_the_same_case():
    assert [draw_case(seed) for seed in range(50)] == [draw_case(seed) for seed in range(50)]
    assert len({draw_case(seed).to_json() for seed in range(50)}) == 50
