"""hybrid beside its rules, one by one and slowly, and by hand: when hybrids yield and when they come back."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace import contracts as c
from tailrace.contracts.testing.provisioning import ProvisioningDrive, check_provisioning_policy
from tailrace.repack import Hybrid, LoadError


def load(name, hybrid=True, **changes):
    view = c.ReplicaView(name, 3, False, 2, 16, 0.1, 0.1, 0.1, 0, True, cells=(0,) if hybrid else ())
    return replace(view, **changes)


def view(batch, loads=(), lent=(), others=0):
    members = [c.MemberView("replica", one.replica, c.Health.UP, hybrid=bool(one.cells)) for one in loads]
    members += [c.MemberView("replica", name, c.Health.UP, hybrid=True) for name in lent]
    members += [c.MemberView("replica", f"s{number}", c.Health.STARTING) for number in range(others)]
    progress = c.Progress(3, 3, 0, 0, 0, 0, 0, 8, 100)
    return c.FleetView({}, members, progress, loads=tuple(loads), lent=tuple(lent), batch=batch)


def batch(done, **more):
    return c.BatchView(8, done, **more)


def lent(policy, *args, **more):
    return [type(action).__name__ + " " + action.replica for action in policy.plan(view(*args, **more))]


SYNC, SEMI_SYNC = Hybrid(count=2, yields_at=1.0), Hybrid(count=2, yields_at=0.5)


def test_all_start_at_once():
    assert Hybrid(count=3).plan(view(batch(0, away=True))) == [c.StartReplica()] * 3


def test_sync_yields_when_all_of_the_batch_is_complete():
    both = [load("h0"), load("h1")]
    assert lent(SYNC, batch(7), both) == []
    assert lent(SYNC, batch(8), both) == []  # complete groups of which the trainer cannot make a batch
    assert lent(SYNC, batch(8, ready=True), both) == ["LendReplica h0", "LendReplica h1"]


def test_semi_sync_yields_at_half_and_only_while_others_generate():
    both = [load("h0"), load("s0", hybrid=False)]
    assert lent(SEMI_SYNC, batch(3), both) == []
    assert lent(SEMI_SYNC, batch(4), both) == ["LendReplica h0"]
    assert lent(SEMI_SYNC, batch(4), [load("h0"), load("h1")]) == []
    assert lent(SEMI_SYNC, batch(4), [load("h0")], others=1) == ["LendReplica h0"]  # one that starts generates soon


def test_a_share_of_the_batch_is_not_a_group_more_by_rounding():
    policy = Hybrid(count=2, yields_at=0.28)  # 0.28 * 25 is above 7 in floating point
    both = [load("h0"), load("s0", hybrid=False)]
    assert lent(policy, c.BatchView(25, 6), both) == []
    assert lent(policy, c.BatchView(25, 7), both) == ["LendReplica h0"]


def test_they_come_back_when_the_trainer_needs_them_no_more():
    assert lent(SYNC, batch(0, trains=True), lent=["h0"]) == []
    assert lent(SYNC, batch(0), lent=["h0"]) == ["ReturnReplica h0"]
    assert lent(SYNC, None, lent=["h0"]) == ["ReturnReplica h0"]  # after the last batch
    assert lent(SEMI_SYNC, batch(4), lent=["h0"], others=1) == []  # the next batch is half complete already


def test_while_the_trainer_is_away_who_generates_goes_on():
    assert lent(SYNC, batch(8, ready=True, away=True), [load("h0")]) == []
    assert lent(SYNC, batch(0, away=True), lent=["h0"]) == []


@pytest.mark.parametrize("busy", [{"pulling": True}, {"version": None}, {"pinned": True}])
def test_one_that_is_busy_yields_later(busy):
    assert lent(SYNC, batch(8, ready=True), [load("h0", **busy), load("h1")]) == ["LendReplica h1"]


def by_the_rules(policy, seen):
    """Who has its devices afterwards, by the words of the documentation."""
    at = seen.batch
    standalone = [one for one in seen.of("replica") if not one.hybrid and one.health is not c.Health.STOPPING]
    if at is not None and at.away:
        return set(seen.lent)
    if at is None:
        return set()
    enough = at.done / at.size >= policy.yields_at and len(standalone) > 0
    if not (at.trains or at.ready or enough):
        return set()
    can = {
        one.replica
        for one in seen.loads
        if one.cells and one.version is not None and not one.pulling and not one.pinned
    }
    return set(seen.lent) | can


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.25, 0.5, 0.9, 1.0]), st.integers(1, 5))
def test_it_equals_its_rules(seed, share, count):
    policy = Hybrid(count=count, yields_at=share)
    drive = ProvisioningDrive(policy, seed)
    drive.settle()
    for _ in range(40):
        drive.happen()
        drive.loads = [drive.batches.load(one) for one in drive.unlent()]
        seen = drive.view()
        if any(member.health is not c.Health.STOPPING for member in seen.of("replica")):
            after = set(seen.lent)
            for action in policy.plan(seen):
                (after.add if isinstance(action, c.LendReplica) else after.discard)(action.replica)
            assert after == by_the_rules(policy, seen), seen
        drive.settle()


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_contract(share):
    assert check_provisioning_policy(Hybrid(count=3, yields_at=share), cases=20) > 100


def hasty(policy, seen):
    return [c.LendReplica(one.replica) for one in seen.loads if one.cells and not one.pulling and not one.pinned]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (hasty, "before hybrids yield|serves nothing"),
        (lambda policy, seen: [], "keeps .* from a trainer that needs all devices"),
        (lambda policy, seen: [one for one in policy.plan(seen) if isinstance(one, c.LendReplica)], "needs no devices"),
    ],
)
def test_the_contract_finds_what_breaks_it(plan, message):
    class Broken(c.ProvisioningPolicy):
        def yields_from(self):
            return 0.5

        def plan(self, seen):
            if not [one for one in seen.of("replica") if one.health is not c.Health.STOPPING]:
                return [c.StartReplica()] * 2
            return plan(Hybrid(count=2, yields_at=0.5), seen)

    with pytest.raises(AssertionError, match=message):
        check_provisioning_policy(Broken(), cases=20)


@pytest.mark.parametrize("options", [{"count": 0}, {"yields_at": 0.0}, {"yields_at": 1.5}])
def test_impossible_options_are_refused(options):
    with pytest.raises(LoadError, match="expected"):
        Hybrid(**options)
