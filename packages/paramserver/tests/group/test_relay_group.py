"""Real relays in real processes, really killed."""

import itertools
import os
import signal
import threading
import time

import pytest

from tailrace.paramserver import (
    AuthenticationFailed,
    Publisher,
    PublishTimeout,
    RelayReader,
    RelayTimeout,
    RelayUnreachable,
    VersionNotYet,
    VersionSuperseded,
    relay_status,
    set_chain,
)
from tailrace.paramserver.group.coordinator import RelayState
from tailrace.paramserver.group.relay_group import RETRY_S, RelayGroup

CHUNK = 64 * 2**10
BIG = 4 * 8 * 2**20


@pytest.fixture
def big(weights):
    """Weights that take a while."""
    return lambda version: weights(version, tensors=4, nbytes=BIG // 4)


def all_have(group, token, version, check, timeout_s=30):
    """Every living relay shows the version, whole and with matching checksums."""
    group.wait(version, timeout_s)
    for address in group.addresses():
        with RelayReader(address, token=token) as reader, reader.lease(version) as held:
            held.verify()
            check(held, version)


def names(relays):
    return {relay.name: relay.address for relay in relays}


def test_a_group_needs_no_further_care(spawn, token, weights, check):
    relays = [spawn() for _ in range(3)]
    with RelayGroup(names(relays), token=token) as group:
        assert group.master == relays[0].address
        with Publisher(group.master, token=token, chunk_bytes=CHUNK) as publisher:
            for version in range(3):
                publisher.publish(version, weights(version))
                all_have(group, token, version, check)
        status = group.status()
    assert [status[relay.name].state for relay in relays] == [RelayState.ALIVE] * 3
    assert status[relays[0].name].next == (relays[1].address,)
    assert status[relays[2].name].versions == (1, 2)


def kill_midway(group, publisher, victim, watched, token, big, timeout_s=30):
    """Publish until the victim could be killed while the watched relay had a part of a version. That version."""
    deadline = time.monotonic() + timeout_s
    for version in itertools.count(2):
        assert time.monotonic() < deadline, "no broadcast was slow enough to be hit"
        publisher.publish(version, big(version))
        while version not in (status := relay_status(watched.address, token=token)).versions:
            if str(version) in status.receiving and not status.receiving[str(version)].startswith("0/"):
                victim.kill()
                return version
        group.wait(version, timeout_s)
    return None


def received(relays, token):
    return {relay.name: relay_status(relay.address, token=token).transfers["chunks_received"] for relay in relays}


@pytest.mark.parametrize("place", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_a_relay_killed_in_the_middle_of_a_broadcast(spawn, token, big, check, until, place):
    relays = [spawn() for _ in range(4)]
    living = [relay for relay in relays if relay is not relays[place]]
    with (
        RelayGroup(names(relays), token=token) as group,
        Publisher(group.master, token=token, chunk_bytes=CHUNK) as publisher,
    ):
        publisher.publish(1, big(1))
        all_have(group, token, 1, check)
        version = kill_midway(group, publisher, relays[place], relays[3], token, big)
        until(lambda: group.status()[relays[place].name].state is RelayState.DEAD, "the death")
        all_have(group, token, version, check)
        assert group.addresses() == [relay.address for relay in living]
        for before, after in itertools.pairwise(living):
            assert group.status()[before.name].next == (after.address,)
        each = -(-BIG // CHUNK)  # and no chunk of any version arrived anywhere twice
        assert received(living, token) == {relay.name: version * each for relay in living}


def test_the_master_killed_in_the_middle_of_a_push(spawn, token, big, check, until):
    relays = [spawn() for _ in range(3)]
    with (
        RelayGroup(names(relays), token=token) as group,
        Publisher(group.master, token=token, chunk_bytes=CHUNK) as publisher,
    ):
        group.follow(publisher.retarget)
        publisher.publish(1, big(1))
        all_have(group, token, 1, check)
        version = kill_midway(group, publisher, relays[0], relays[2], token, big)
        until(lambda: group.master != relays[0].address, "another master")
        until(lambda: publisher.address == group.master, "the publisher to be told")
        all_have(group, token, version, check)
        publisher.publish(version + 1, big(version + 1))
        all_have(group, token, version + 1, check)
        each = -(-BIG // CHUNK)
        assert received(relays[1:], token) == {relay.name: (version + 1) * each for relay in relays[1:]}


def test_a_source_killed_in_the_middle_of_a_pull(spawn, token, big, check, until):
    relays = [spawn() for _ in range(3)]
    with (
        RelayGroup(names(relays), token=token) as group,
        Publisher(group.master, token=token, chunk_bytes=CHUNK) as publisher,
        RelayReader(group.locate, token=token, same_host=False) as reader,
    ):
        publisher.publish(1, big(1))
        group.wait(1, 30)
        pulled = []

        def pull():
            with reader.lease(1, timeout_s=30) as held:
                check(held, 1)
                pulled.append(reader.transfers["chunks_received"])

        pulling = threading.Thread(target=pull)
        pulling.start()
        until(lambda: reader.transfers["chunks_received"] > 10, "the pull to begin")
        source = next(relay for relay in relays if relay.address == reader.address)
        source.kill()
        pulling.join(30)
        assert pulled == [-(-BIG // CHUNK)]  # none twice
        until(lambda: source.address not in group.locate(1), "the death")


def test_two_roots_and_another_site(spawn, token, weights, check):
    first, second, receiver, neighbour = relays = [spawn() for _ in range(4)]
    told = [[], []]
    sites = {receiver.name: "far", neighbour.name: "far"}
    with (
        RelayGroup(names(relays), token=token, sites=sites, on_master=[told[0].append, told[1].append]) as group,
        Publisher(group.masters[0], token=token, chunk_bytes=CHUNK) as rank0,
        Publisher(group.masters[1], token=token, chunk_bytes=CHUNK) as rank1,
    ):
        assert group.masters == [first.address, second.address]
        for version in (1, 2):
            for publisher in (rank0, rank1):
                publisher.publish(version, weights(version, nbytes=2**20))
            all_have(group, token, version, check)
        status = group.status()
        assert [status[relay.name].next for relay in relays] == [(receiver.address,), (), (neighbour.address,), ()]
        assert set(received(relays, token).values()) == {2 * 4 * 2**20 // CHUNK}
    assert told == [[first.address], [second.address]]


def test_a_suspended_relay_is_bridged_and_catches_up(spawn, token, big, check, until):
    relays = [spawn(stall_s=1.0) for _ in range(3)]
    with RelayGroup(names(relays), token=token) as group, Publisher(group.master, token=token) as publisher:
        publisher.publish(0, big(0))
        all_have(group, token, 0, check)
        os.kill(relays[1].pid, signal.SIGSTOP)
        try:
            until(lambda: group.status()[relays[1].name].state is RelayState.DEAD, "the eviction")
            publisher.publish(1, big(1))
            all_have(group, token, 1, check)
            assert relays[1].address not in group.addresses()
        finally:
            os.kill(relays[1].pid, signal.SIGCONT)
        until(lambda: relays[1].address in group.addresses(), "its return")
        assert group.addresses()[-1] == relays[1].address  # at the tail
        all_have(group, token, 1, check)


def test_a_push_that_was_cut_off_is_tried_again_although_the_master_lives(spawn, token, weights, check, until):
    relay = spawn()
    with RelayGroup({relay.name: relay.address}, token=token, dead_after_s=30) as group:
        outcomes = []

        def on_published(version, error):
            outcomes.append(error)
            group.published(version, error)

        publisher = Publisher(group.master, token=token, stall_s=1.0, slot_timeout_s=1.0, on_published=on_published)
        with publisher:
            group.follow(publisher.retarget)
            publisher.publish(0, weights(0))
            all_have(group, token, 0, check)
            until(lambda: outcomes, "the report of version 0")  # it may come after the relay has it
            outcomes.clear()
            os.kill(relay.pid, signal.SIGSTOP)
            try:
                publisher.publish(1, weights(1))
                until(lambda: outcomes, "the push to fail")
            finally:
                os.kill(relay.pid, signal.SIGCONT)
            all_have(group, token, 1, check)
            until(lambda: outcomes[-1] is None, "its report")
            assert isinstance(outcomes[0], RelayTimeout)
            seen = len(outcomes)
            group.published(2, VersionSuperseded("by 3"))
            group.published(1, None)
            time.sleep(3 * RETRY_S)
            assert len(outcomes) == seen  # neither is a failure


def test_a_relay_comes_back_at_another_address_and_is_caught_up(spawn, token, weights, check, until):
    relays = [spawn() for _ in range(2)]
    with RelayGroup(names(relays), token=token) as group, Publisher(group.master, token=token) as publisher:
        publisher.publish(0, weights(0))
        all_have(group, token, 0, check)
        relays[1].kill()
        until(lambda: group.addresses() == [relays[0].address], "the death")
        back = spawn(relays[1].name)
        group.join(back.address, name=back.name)
        until(lambda: group.addresses() == [relays[0].address, back.address], "its return")
        all_have(group, token, 0, check)
        assert group.status()[back.name].life == 2


def test_a_restart_at_the_same_address_is_seen_as_one(spawn, token, weights, check, until):
    relays = [spawn() for _ in range(2)]
    with RelayGroup(names(relays), token=token) as group, Publisher(group.master, token=token) as publisher:
        group.follow(publisher.retarget)
        relays[0].kill()
        back = spawn(relays[0].name, port=int(relays[0].address.rpartition(":")[2]))
        until(lambda: group.addresses() == [relays[1].address, back.address], "its return at the tail")
        assert group.master == relays[1].address
        publisher.publish(0, weights(0))
        all_have(group, token, 0, check)


def test_all_relays_dead(spawn, token, until):
    relay = spawn()
    with RelayGroup([relay.address], token=token) as group:
        relay.kill()
        until(lambda: group.addresses() == [], "the death")
        with pytest.raises(RelayUnreachable, match="no relay of the group lives"):
            _ = group.master
        with pytest.raises(RelayUnreachable, match="no relay"):
            group.wait(1, 5)
        with pytest.raises(VersionNotYet, match=r"held by no living source|no source"), group.source(1, timeout_s=0.3):
            pass
    with pytest.raises(RelayUnreachable, match="found no living relay"):
        RelayGroup([relay.address], token=token, timeout_s=3)


def test_a_wrong_token(serve):
    relays = [serve() for _ in range(2)]
    with pytest.raises(AuthenticationFailed, match=r"found no living relay.*wrong token"):
        RelayGroup([relay.address for relay in relays], token="another")


def test_a_group_that_does_not_form_in_time(spawn, token):
    relay = spawn()
    os.kill(relay.pid, signal.SIGSTOP)
    try:
        with pytest.raises(RelayUnreachable, match=f"{relay.address}: not heard of yet"):
            RelayGroup([relay.address], token=token, timeout_s=0.2)
    finally:
        os.kill(relay.pid, signal.SIGCONT)


def test_waits_name_who_is_late(serve, token):
    relay = serve("late-one")
    with RelayGroup({"late-one": relay.address}, token=token) as group:
        with pytest.raises(PublishTimeout, match="version 3 did not reach late-one"):
            group.wait(3, 0.2)
        assert group.locate() == [relay.address]
        assert group.locate(3) == []


def test_readers_spread_over_the_relays_of_their_site(serve, token):
    relays = [serve(name) for name in ("spread-a", "spread-b", "spread-c")]
    a, b, c = (relay.address for relay in relays)
    with RelayGroup(names(relays), token=token, sites={"spread-c": "far"}) as group:
        assert [group.locate() for _ in range(4)] == [[a, b, c], [b, c, a], [c, a, b], [a, b, c]]
        assert [group.locate(site="") for _ in range(2)] == [[a, b, c], [b, a, c]]
        assert group.locate(site="far")[0] == c


def test_a_source_serves_one_reader_at_a_time(serve, token, weights):
    relays = [serve() for _ in range(2)]
    with RelayGroup([relay.address for relay in relays], token=token) as group:
        with Publisher(group.master, token=token) as publisher:
            publisher.publish(0, weights(0))
            group.wait(0, 20)
        with group.source(0) as first, group.source(0) as second:
            assert {first, second} == {relay.address for relay in relays}
            with pytest.raises(VersionNotYet), group.source(0, timeout_s=0.3):
                pass
        with group.source(0, timeout_s=5) as again:
            assert again in (first, second)


def test_a_callback_that_fails_or_hangs_costs_the_relays_nothing(spawn, token, until, caplog):
    relays = [spawn() for _ in range(3)]
    release = threading.Event()

    def callback(address):
        release.wait(20)
        raise RuntimeError(f"cannot go to {address}")

    with RelayGroup([relay.address for relay in relays], token=token, on_master=callback) as group:
        relays[0].kill()
        relays[1].kill()
        until(lambda: group.addresses() == [relays[2].address], "both deaths")
        assert group.master == relays[2].address
        release.set()
        until(lambda: f"the relay {relays[2].address}" in caplog.text, "the last call")


def test_what_is_no_group(token):
    for relays in ([], ["127.0.0.1:1", "127.0.0.1:1"], {"a": "127.0.0.1:1", "b": "127.0.0.1:1"}):
        with pytest.raises(ValueError, match="expected at least one"):
            RelayGroup(relays, token=token)
    with pytest.raises(ValueError, match="expected less"):
        RelayGroup(["127.0.0.1:1"], token=token, heartbeat_s=2, dead_after_s=1)


def test_a_group_may_begin_with_nobody(spawn, token, weights, check, until):
    with (
        RelayGroup({}, token=token, timeout_s=None) as group,
        Publisher(None, token=token) as publisher,
    ):
        assert (group.addresses(), group.status()) == ([], {})
        publisher.publish(0, weights(0))
        group.follow(publisher.retarget)
        relays = [spawn() for _ in range(2)]
        group.join("127.0.0.1:1", name="nobody")
        for relay in relays:
            group.join(relay.address, name=relay.name)
        until(lambda: len(group.addresses()) == 2, "both relays")
        all_have(group, token, 0, check)
        assert group.status()["nobody"].state is RelayState.DEAD
        for name in ("nobody", relays[0].name, relays[1].name):
            group.leave(name)
        until(lambda: not group.status(), "all to leave")
        fresh = spawn()
        group.join(fresh.address, name=relays[0].name)
        until(lambda: group.addresses() == [fresh.address], "the fresh relay")
        all_have(group, token, 0, check)
    with RelayGroup(["127.0.0.1:1"], token=token, timeout_s=None) as group, pytest.raises(RelayUnreachable):
        assert group.master


def test_orders_reach_the_relays_as_next_hops(serve, token, until):
    relays = [serve() for _ in range(3)]
    with RelayGroup([relay.address for relay in relays], token=token) as group:
        until(lambda: relay_status(relays[1].address, token=token).next, "the edge")
        group.leave(relays[1].address)
        until(lambda: len(group.status()) == 2, "its leaving")
        until(lambda: group.status()[relays[0].address].next == (relays[2].address,), "the bridge")


def test_edges_that_somebody_else_set_are_put_right(serve, token, until):
    relays = [serve() for _ in range(2)]
    with RelayGroup([relay.address for relay in relays], token=token) as group:
        until(lambda: group.status()[relays[0].address].next, "the edge")
        set_chain([relays[0].address], token=token)
        until(lambda: relay_status(relays[0].address, token=token).next == relays[1].address, "the edge again")


def test_who_waits_for_a_source_of_a_group_that_closes_is_told_so(serve, token):
    """It waited on until its own deadline."""
    relay = serve()
    group = RelayGroup([relay.address], token=token)
    closing = threading.Timer(0.3, group.close)
    closing.start()
    began = time.monotonic()
    with pytest.raises(RelayUnreachable, match="the group is closed"), group.source(1, timeout_s=60):
        pass
    assert time.monotonic() - began < 30
    closing.join()
