"""Unequal replicas, and sites: who starts where with which engine, and from whom each replica pulls."""

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.provisioning import pool_for
from tailrace.controller.spec import RolloutPool

NEAR = RolloutPool("near", 1, tp=2, replica_batch=4)
FAR = RolloutPool("far", 2, "west", tp=1, replica_batch=2)
HELD = (c.Step,)


def told(members, replica):
    """Addresses of a replica's relays, in order."""
    return tuple(relay.address for relay in members.relays_for(replica))


def unequal(*, relays=3, relay_sites=("", "west", "west"), **changes):
    pools = {"pools": (NEAR, FAR), "provisioning": policy("provisioning", "static", count=3)}
    run = Scripted(spec(**{**pools, "relay_sites": relay_sites, **changes}), relays=relays)
    run.go(c.Tick(), leave=HELD)
    return run


def places(commands, kind=c.Start, role="replica"):
    return {command.id: command.place for command in of(kind, commands) if command.role == role}


def test_replicas_fill_the_pools_in_their_order():
    run = unequal()
    far = c.Place(site="west", pool="far")
    assert places(run.given) == {"r0": c.Place(pool="near"), "r1": far, "r2": far}
    assert [command.tp for command in of(c.Start, run.given) if command.role == "replica"] == [None] * 3


def test_policies_see_a_replicas_pool_site_and_size():
    run = unequal()
    views = {view.replica: (view.pool, view.site, view.capacity) for view in run.controller.owned.views()}
    assert views == {"r0": ("near", "", 4), "r1": ("far", "west", 2), "r2": ("far", "west", 2)}
    members = {view.id: (view.pool, view.site, view.tp) for view in run.controller.provisioning.view().of("replica")}
    assert members == {"r0": ("near", "", 2), "r1": ("far", "west", 1), "r2": ("far", "west", 1)}


def test_one_that_went_down_comes_back_as_it_was():
    run = unequal()
    far = c.Place(site="west", pool="far")
    assert places(run.down("replica", "r2", leave=HELD), c.Restart) == {"r2": far}
    resumed = run.go(c.Resumed((0,)), leave=HELD)
    assert places(resumed, c.Restart) == {"r0": c.Place(pool="near"), "r1": far, "r2": far}


def test_relays_are_counted_within_their_site_and_the_trainer_is_told_of_it():
    run = unequal()
    west = [c.Place(index, site="west") for index in range(2)]
    assert places(run.given, role="relay") == {"0": c.Place(0), "1": west[0], "2": west[1]}
    publish = of(c.Publish, run.given)[-1]
    assert publish.relays == {str(index): f"relay-{index}" for index in range(3)}
    assert publish.sites == {"1": "west", "2": "west"}
    assert places(run.down("relay", "2", leave=HELD), c.Restart, "relay") == {"2": west[1]}


def test_replicas_pull_at_their_own_site_and_elsewhere_only_if_no_relay_of_it_is_up():
    run = unequal()
    pulls = {pull.replica: pull.sources for pull in of(c.Pull, run.given)}
    assert pulls["r0"] == ("relay-0",)
    assert sorted(pulls["r1"]) == sorted(pulls["r2"]) == ["relay-1", "relay-2"]
    assert pulls["r1"] != pulls["r2"]  # they spread
    members = run.controller.members
    run.down("relay", "1", leave=("relay", *HELD))
    assert told(members, "r1") == ("relay-2",)
    run.down("relay", "2", leave=("relay", *HELD))
    assert told(members, "r1") == ("relay-0",)
    run.catch_up("relay", leave=HELD)
    assert sorted(told(members, "r1")) == ["relay-1", "relay-2"]
    run.down("relay", "0", leave=("relay", *HELD))
    assert sorted(told(members, "r0")) == ["relay-1", "relay-2"]


def test_a_run_over_sites_ends_with_every_prompt_trained_on():
    run = unequal()
    run.down("relay", "1", leave=HELD)
    run.down("replica", "r1", leave=HELD)
    run.catch_up()
    assert run.view.finished
    assert run.view.counts.trained == 6


class Growing(c.ProvisioningPolicy):
    """One replica, and then one more of each of these pools."""

    def __init__(self, *pools):
        self.pools = pools

    def plan(self, view):
        replicas = view.of("replica")
        if not replicas:
            return [c.StartReplica()]
        return (
            [c.StartReplica(pool=pool) for pool in self.pools] if len(replicas) == 1 and view.progress.version else []
        )


def test_a_policy_may_name_the_pool():
    run = unequal(provisioning=Growing("far", "near"))
    run.catch_up()
    assert {name: place.pool for name, place in places(run.given).items()} == {"r0": "near", "r1": "far", "r2": "near"}


def test_a_pool_that_the_run_has_not_is_a_policys_fault():
    run = unequal(provisioning=Growing("fur"))
    run.catch_up()
    assert "expected one of the pools near, far" in run.view.failure
    run = unequal(provisioning=Growing("fur"), pools=())
    run.catch_up()
    assert "expected one of the pools (the run has none)" in run.view.failure


@pytest.mark.parametrize(
    ("members", "wanted", "name"),
    [
        ([], None, "near"),
        (["near"], None, "far"),
        (["far", "far"], None, "near"),
        (["near", "far", "far"], None, "far"),
        ([], "far", "far"),
    ],
)
def test_which_pool_a_new_replica_joins(members, wanted, name):
    assert pool_for(spec(pools=(NEAR, FAR)), members, wanted).name == name


def test_without_pools_a_replica_has_the_runs_own_sizes():
    assert pool_for(spec(tp=2), ["", ""]) == RolloutPool("", 0, tp=2, replica_batch=4)
    assert pool_for(spec(), [], "near") is None
