"""Who a replica pulls from: a rule that is written out beside the code, and whole publications by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.weight_sources import Sources, sources

SITES = ("", "west")


@st.composite
def fleets(draw):
    """A controller whose members are in states that are drawn, the name of one replica, and the version that it lacks."""
    controller = Controller(spec(peers=True))
    members, fleet = controller.owned.members, controller.owned.fleet
    for index in range(draw(st.integers(0, 2))):
        relay = members.add("relay", str(index), site=draw(st.sampled_from(SITES)))
        relay.health = draw(st.sampled_from([c.Health.UP, c.Health.DOWN]))
        relay.address, relay.machine = f"relay {index}", draw(st.sampled_from(["m0", "m1"]))
    addresses = [f"relay {index}" for index in range(2)]
    names = [f"r{index}" for index in range(draw(st.integers(1, 6)))]
    for name in names:
        replica = fleet.add(members.add("replica", name, site=draw(st.sampled_from(SITES))), 4)
        replica.member.health = draw(st.sampled_from([c.Health.UP] * 3 + [c.Health.STARTING, c.Health.STOPPING]))
        replica.member.address = name
        replica.member.machine = draw(st.sampled_from(["m0", "m1"]))
        replica.offered = draw(st.sampled_from([None, 3, 4, 4]))
        replica.pulling = draw(st.sampled_from([None, None, 4, 5]))
        if replica.pulling is not None:
            replica.source = draw(st.sampled_from([*names, *addresses]))
            replica.pull_waits = draw(st.sampled_from([None, None, c.Reason(c.Why.BEHIND)]))
    return controller, draw(st.sampled_from(names)), draw(st.sampled_from([3, 4, 5]))


def slow(controller, name, version):
    """Free and busy sources as sets, by the rule's own words."""
    members, fleet = controller.owned.members, controller.owned.fleet
    site = members.get("replica", name).site
    relays = {m.address: m.site for m in members.of("relay") if m.health is c.Health.UP}
    here = {address: of_ for address, of_ in relays.items() if of_ == site}
    holders = dict(here or relays)  # as without peers: those of its site, or all
    taken, inbound = set(), False
    for other in fleet.replicas.values():
        if other.id == name or other.member.health is c.Health.STARTING:
            continue
        if other.offered == version and other.member.health is c.Health.UP:
            holders[other.member.address] = other.member.site
        if other.pulling is not None and other.pull_waits is None:  # also where it is being stopped: it still pulls
            taken.add(other.source)
            inbound = inbound or (other.pulling == version and other.member.site == site)
    near = {address for address, of_ in holders.items() if of_ == site}
    if near:
        return near - taken, near & taken
    if inbound:
        return set(), set(holders)
    return set(holders) - taken, set(holders) & taken


@settings(max_examples=300)
@given(fleets())
def test_the_sources_are_those_of_the_rule_and_best_first(drawn):
    controller, name, version = drawn
    members, fleet = controller.owned.members, controller.owned.fleet
    found = sources(members, fleet, fleet.replicas[name], version, peers=True)
    assert (set(found.free), set(found.busy)) == slow(controller, name, version)
    assert len(set(found.free + found.busy)) == len(found.free) + len(found.busy)
    assert bool(found) == bool(found.free or found.busy)
    machine = {m.address: m.machine for role in ("relay", "replica") for m in members.of(role)}
    here = members.get("replica", name).machine
    far = [machine[address] != here for address in found.free]
    assert far == sorted(far)  # those on its machine first
    for there in (False, True):
        relays = [
            address.startswith("relay") for address, is_far in zip(found.free, far, strict=True) if is_far == there
        ]
        assert relays == sorted(relays)  # and replicas before relays, which spares the trainer's machine


def test_without_peers_only_relays_are_sources():
    run = Scripted(spec())
    run.go(c.Tick())
    run.later(1.0)
    owned = run.controller.owned
    for replica in owned.fleet.replicas.values():
        assert replica.member.address == ""
        assert sources(owned.members, owned.fleet, replica, 0, peers=False) == Sources(("relay-0",))
    assert {pull.sources for pull in of(c.Pull, run.given)} == {("relay-0",)}


def peers(count, **changes):
    return Scripted(spec(peers=True, provisioning=policy("provisioning", "static", count=count), **changes))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_all_have_a_version_after_as_many_turns_as_it_takes_to_double(count):
    """One relay and no peer hold version 0; each turn every holder serves one, and each that pulls is answered."""
    run = peers(count)
    run.go(c.Tick(), leave=(c.Pull,))
    turns, holders = [], 1
    while run.left:
        pulls, run.left = run.left, []
        turns.append(len(pulls))
        first = [pull.sources[0] for pull in pulls]
        assert len(set(first)) == len(first), "a source has two pullers"
        assert len(pulls) == min(holders, count + 1 - holders)
        holders += len(pulls)
        run.go(*(event for pull in pulls for event in run.answers(pull)), leave=(c.Pull, c.Route))
        run.left = [command for command in run.left if isinstance(command, c.Pull)]
    assert sum(turns) == count
    assert len(turns) == math.ceil(math.log2(count + 1))
    assert all(replica.version == 0 for replica in run.controller.owned.fleet.replicas.values())


def test_one_that_waits_is_shown_and_begins_when_its_source_is_free_or_another_has_it():
    run = peers(2)
    run.go(c.Tick(), leave=(c.Pull,))
    (first,) = run.left
    assert (first.replica, first.sources) == ("r0", ("relay-0",))
    rows = {row.id: row.doing for row in run.view.replicas()}
    assert rows == {"r0": "pulling version 0", "r1": "waiting for a source of version 0"}
    run.left = []
    failed = run.go(c.PullFailed("r0", 0, "it broke off", first.seq), leave=(c.Pull,))
    (second,) = of(c.Pull, failed)
    assert (second.replica, second.sources) == ("r1", ("relay-0",))
    run.left = []
    pulls = of(c.Pull, run.later(1.0, leave=(c.Pull,)))  # r0 tries again, and finds the relay busy
    assert pulls == []
    came = c.Pulled("r1", 0, second.seq, source="relay-0")
    pulls = of(c.Pull, run.go(came, leave=(c.Pull, c.Route)))
    assert [(pull.replica, pull.sources) for pull in pulls] == [("r0", ("replica-r1", "relay-0"))]


def test_a_version_that_came_from_its_checkpoint_is_not_passed_on():
    run = peers(2)
    run.go(c.Tick(), leave=(c.Pull,))
    (first,) = run.left
    run.left = []
    pulls = of(c.Pull, run.go(c.Pulled("r0", 0, first.seq), leave=(c.Pull, c.Route)))
    assert [(pull.replica, pull.sources) for pull in pulls] == [("r1", ("relay-0",))]


def test_a_source_that_dies_is_named_no_more_and_its_puller_has_the_others():
    run = peers(3)
    run.go(c.Tick(), leave=(c.Route,))  # nothing is generated
    pulls = of(c.Pull, run.down("replica", "r1", leave=(c.Pull, c.Route)))
    assert [(pull.replica, pull.sources) for pull in pulls if pull.replica == "r1"] == [
        ("r1", ("replica-r2", "replica-r0", "relay-0"))
    ]
    run.left = []
    pulls = of(c.Pull, run.down("replica", "r2", leave=(c.Pull, c.Route)))
    # r1 still pulls from the one that died; it goes on with the others by itself
    assert [pull.sources for pull in pulls if pull.replica == "r2"] == [("replica-r0", "relay-0")]


def test_replicas_pull_from_each_other_while_no_relay_is_up():
    run = peers(3)
    run.go(c.Tick(), leave=(c.Route,))  # nothing is generated
    run.down("relay", "0", leave=("relay", c.Route))
    pulls = of(c.Pull, run.down("replica", "r1", leave=(c.Pull, c.Route)))
    assert [pull.sources for pull in pulls if pull.replica == "r1"] == [("replica-r2", "replica-r0")]


def steps(run, replica, leave):
    """Version 1 is made of what a replica finishes, and published."""
    names = list(run.controller.owned.fleet.replicas[replica].assigned)[:4]
    assert len(names) == 4
    return run.go(*(c.Finished(replica, name, 3) for name in names), leave=leave)


def one_waits_while_version_1_comes(*, old=False):
    """r0 has version 0; r1 and r2 pull it from r0 and the relay, and r3 waits. Returns what r2's turn then brings."""
    run, leave = peers(4, replica_batch=8), (c.Pull, c.Route)
    run.go(c.Tick(), leave=leave)
    run.left, (first,) = [], run.left
    run.go(*run.answers(first), leave=leave)
    at_relay = next(pull for pull in of(c.Pull, run.left) if pull.sources[0] == "relay-0")
    waiting = next(one for one in run.controller.owned.fleet.replicas.values() if one.pull_waits is not None)
    assert waiting.pulling == 0
    waiting.pulls_old = old
    steps(run, "r0", leave)
    assert run.view.published == 1
    assert not [pull for pull in of(c.Pull, run.given) if pull.replica == waiting.id]
    told = run.go(*run.answers(at_relay), leave=leave)
    return [pull for pull in of(c.Pull, told) if pull.replica == waiting.id]


def test_one_that_waits_gets_what_is_newest_when_its_turn_comes():
    (pull,) = one_waits_while_version_1_comes()
    assert (pull.version, pull.sources[0], pull.reason.numbers) == (1, "relay-0", {"version": 1})


def test_one_that_waits_for_an_old_version_is_not_given_a_newer_one():
    (pull,) = one_waits_while_version_1_comes(old=True)
    assert pull.version == 0


def test_one_that_waits_generates_on_until_there_is_a_source():
    run, leave = peers(2, sync=policy("sync", "interrupting"), replica_batch=8), (c.Pull, c.Interrupt, c.Route)
    run.go(c.Tick(), leave=(c.Route,))
    run.left = []
    told = steps(run, "r0", leave)
    work = {name: set(replica.assigned) for name, replica in run.controller.owned.fleet.replicas.items()}
    (first,) = of(c.Pull, told)
    (other,) = {"r0", "r1"} - {first.replica}
    assert work[other]
    assert {one.replica for one in of(c.Interrupt, told)} <= {first.replica}
    told = run.go(c.Pulled(first.replica, 1, first.seq, source="relay-0"), leave=leave)
    assert [(one.replica, set(one.trajectories)) for one in of(c.Interrupt, told)] == [(other, work[other])]
    assert [(pull.replica, pull.version) for pull in of(c.Pull, told)] == [(other, 1)]
