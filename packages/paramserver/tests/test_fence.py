"""A version that is sealed until its checkpoint is durable, and versions that are retired by name."""

import pytest

from tailrace.paramserver import (
    Publisher,
    PublishTimeout,
    RelayReader,
    SlotBusy,
    VersionNotYet,
    VersionRetired,
    set_chain,
)

CHUNK = 4096


@pytest.fixture
def tree(serve, peer):
    """A root with two next hops, one of which has another one."""
    root, left, right, leaf = relays = [serve() for _ in range(4)]
    peer.ask(root, {"op": "set_next", "addresses": [left.address, right.address]})
    peer.ask(left, {"op": "set_next", "addresses": [leaf.address]})
    return relays


@pytest.fixture
def publisher(tree, token):
    with Publisher(tree[0].address, token=token, chunk_bytes=CHUNK) as publisher:
        yield publisher


def test_a_sealed_version_is_everywhere_and_nowhere_to_be_seen(tree, publisher, peer, token, weights, check, until):
    publisher.publish(0, weights(0))
    publisher.publish(1, weights(1), sealed=True)
    for relay in tree:
        until(lambda relay=relay: peer.status(relay)["sealed"] == [1], "the sealed version")
        with (
            RelayReader(relay.address, token=token) as near,
            RelayReader(relay.address, token=token, same_host=False) as far,
        ):
            for reader in (near, far):
                assert reader.latest() in (0, None)
                with pytest.raises(VersionNotYet, match="sealed"), reader.lease(1, timeout_s=0.1):
                    pass
    with pytest.raises(PublishTimeout, match="1 held, sealed"):
        publisher.wait(1, 0.1)
    publisher.reveal(1)
    publisher.wait(1, 1)
    for relay in tree:
        with RelayReader(relay.address, token=token) as reader, reader.lease(1, timeout_s=10) as held:
            check(held, 1)
        assert peer.status(relay)["sealed"] == []


def test_revealed_before_it_arrived(tree, publisher, token, weights, check):
    for version in range(5):
        publisher.publish(version, weights(version), sealed=True)
        publisher.reveal(version)
        publisher.wait(version, 20)
        for relay in tree:
            with RelayReader(relay.address, token=token) as reader, reader.lease(version, timeout_s=10) as held:
                check(held, version)


def test_on_published_waits_for_the_reveal(serve, peer, token, weights, until):
    relay, outcomes = serve(), []
    with Publisher(relay.address, token=token, on_published=lambda v, e: outcomes.append((v, e))) as publisher:
        publisher.publish(0, weights(0), sealed=True)
        until(lambda: peer.status(relay)["sealed"] == [0], "the sealed version")
        publisher.publish(1, weights(1), sealed=True)
        publisher.reveal(1)
        publisher.wait(1, 20)
        until(lambda: outcomes == [(1, None)], "the callback")
        publisher.reveal(0)
    assert (0, None) in outcomes


def test_an_outcome_is_told_although_a_push_waits_for_room(serve, peer, token, weights, until):
    relay, outcomes = serve(), []
    with Publisher(relay.address, token=token, on_published=lambda v, e: outcomes.append((v, e))) as publisher:
        for version in (0, 1):
            publisher.publish(version, weights(version), sealed=True)
            until(lambda last=version: last in peer.status(relay)["sealed"], "the sealed version")
        publisher.publish(2, weights(2), sealed=True)
        with pytest.raises(PublishTimeout, match="2 pushing, sealed"):
            publisher.wait(2, 0.5)
        publisher.reveal(0)
        until(lambda: outcomes == [(0, None)], "the callback")
        with pytest.raises(PublishTimeout, match="2 pushing, sealed"):
            publisher.wait(2, 0.1)
        publisher.reveal(1)


def test_a_relay_that_joins_later_learns_it(serve, peer, token, weights, check, until):
    first, second, third = serve(), serve(), serve()
    with Publisher(first.address, token=token, chunk_bytes=CHUNK) as publisher:
        publisher.publish(1, weights(1), sealed=True)
        until(lambda: peer.status(first)["sealed"] == [1], "the sealed version")
        peer.ask(second, {"op": "fetch", "version": 1, "source": first.address})
        assert peer.status(second)["sealed"] == [1]  # sealed as it was at its source
        publisher.reveal(1)
        set_chain([first.address, second.address, third.address], token=token)
        for relay in (second, third):
            with RelayReader(relay.address, token=token) as reader, reader.lease(1, timeout_s=10) as held:
                check(held, 1)


def test_a_waiting_reader_wakes_with_the_reveal(serve, peer, token, weights, check, until):
    import threading

    relay, found = serve(), []

    def read():
        with RelayReader(relay.address, token=token) as reader, reader.lease(1, timeout_s=20) as held:
            check(held, 1)
            found.append(1)

    with Publisher(relay.address, token=token) as publisher:
        publisher.publish(1, weights(1), sealed=True)
        until(lambda: peer.status(relay)["sealed"] == [1], "the sealed version")
        thread = threading.Thread(target=read)
        thread.start()
        assert found == []
        publisher.reveal(1)
        thread.join(5)
    assert found == [1]


def test_the_next_version_waits_for_the_reveal_and_no_reader_for_either(serve, peer, token, weights, check, until):
    relay = serve(slot_timeout_s=0.5)
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        publisher.publish(1, weights(1))
        publisher.wait(1, 20)
        publisher.publish(2, weights(2), sealed=True)
        until(lambda: peer.status(relay)["sealed"] == [2], "the sealed version")
        publisher.publish(3, weights(3))
        with pytest.raises(SlotBusy, match="sealed version to be revealed; use more slots"):
            publisher.wait(3, 20)
        with reader.lease(1) as held:
            check(held, 1)
        publisher.reveal(2)
        publisher.retarget(relay.address)
        publisher.wait(3, 20)
        assert reader.versions() == [2, 3]


def test_a_trainer_that_died_before_its_checkpoint_was_durable(serve, peer, token, weights, check, until):
    """It comes back from the checkpoint before, and publishes that number again: the sealed one was never seen, and goes."""
    relay = serve()
    with RelayReader(relay.address, token=token) as reader:
        with Publisher(relay.address, token=token) as before:
            before.publish(1, weights(1))
            before.wait(1, 20)
            before.publish(2, weights(2), sealed=True)
            until(lambda: peer.status(relay)["sealed"] == [2], "the sealed version")
        with Publisher(relay.address, token=token) as after:
            after.publish(2, weights(22))
            after.wait(2, 20)
        assert peer.status(relay)["sealed"] == []
        with reader.lease(2) as held:
            assert bytes(held.raw()["layer.0.weight"].data)[:1] == bytes([22])


def test_a_trainer_that_died_before_it_could_reveal(serve, peer, token, weights, check, until):
    relay = serve()
    with Publisher(relay.address, token=token) as before:
        before.publish(2, weights(2), sealed=True)
        until(lambda: peer.status(relay)["sealed"] == [2], "the sealed version")
    with Publisher(relay.address, token=token) as after, RelayReader(relay.address, token=token) as reader:
        after.reveal(2)
        with reader.lease(2) as held:
            check(held, 2)
        with pytest.raises(VersionRetired, match="version 7 is not here"):
            after.reveal(7)


def test_what_a_dead_trainer_left_sealed_goes_everywhere_at_first_contact(tree, peer, token, weights, check, until):
    """Its successor does not use the number again, so nothing else would ever take its place."""
    with Publisher(tree[0].address, token=token, chunk_bytes=CHUNK) as before:
        before.publish(1, weights(1))
        before.wait(1, 20)
        before.publish(2, weights(2), sealed=True)
        for relay in tree:
            until(lambda relay=relay: peer.status(relay)["sealed"] == [2], "the sealed version")
    with Publisher(tree[0].address, token=token, chunk_bytes=CHUNK, alone=True) as after:
        for version in (3, 4):
            after.publish(version, weights(version), sealed=True)
            for relay in tree:
                until(lambda relay=relay, v=version: peer.status(relay)["sealed"] == [v], "the next sealed version")
            after.retarget(tree[0].address)  # what is its own stays
            after.reveal(version)
            after.wait(version, 20)
    for relay in tree:
        with RelayReader(relay.address, token=token) as reader, reader.lease(4, timeout_s=10) as held:
            check(held, 4)


def test_a_clock_that_was_set_back_behind_a_sealed_version(serve, peer, token, weights, check, until):
    relay, manifest = serve(), peer.manifest(b"x" * 100, CHUNK, version=9, stamp=2**61)
    channel = peer.dial(relay)
    peer.offer(channel, manifest, sealed=True)
    peer.send(channel, manifest, b"x" * 100, 0)
    assert channel.answer(10) == {"complete": True}
    channel.close()
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        publisher.publish(9, weights(9))
        publisher.wait(9, 20)
        with reader.lease(9) as held:
            check(held, 9)
    assert peer.status(relay)["sealed"] == []


def test_retired_everywhere(tree, publisher, peer, token, weights, check, until):
    for version in (1, 2):
        publisher.publish(version, weights(version))
        publisher.wait(version, 20)
    for relay in tree:
        until(lambda relay=relay: peer.status(relay)["versions"] == [1, 2], "both versions")
    with RelayReader(tree[3].address, token=token) as reader, reader.lease(2) as held:
        publisher.retire(2)  # the newest: a bad step, say
        for relay in tree:
            until(lambda relay=relay: peer.status(relay)["versions"] == [1], "the version to go")
        check(held, 2)  # until its lease ends
        held.verify()
        with (
            RelayReader(tree[3].address, token=token) as other,
            pytest.raises(VersionRetired, match="version 2 is retired"),
            other.lease(2, timeout_s=5),
        ):
            pass
    publisher.retarget(tree[0].address)  # it does not come back from the staging memory
    publisher.publish(2, weights(22))  # the step, done again
    publisher.wait(2, 20)
    for relay in tree:
        until(lambda relay=relay: peer.status(relay)["versions"] == [1, 2], "the new version 2")
        with RelayReader(relay.address, token=token) as reader, reader.lease(2) as held:
            assert bytes(held.raw()["layer.0.weight"].data)[:1] == bytes([22])


def test_a_relay_that_was_away_learns_what_was_retired(serve, peer, token, weights, until):
    first, second = serve(), serve()
    set_chain([first.address, second.address], token=token)
    with Publisher(first.address, token=token) as publisher:
        publisher.publish(1, weights(1))
        until(lambda: peer.status(second)["versions"] == [1], "the version")
        set_chain([first.address], token=token)
        publisher.retire(1)
        assert peer.status(second)["versions"] == [1]
        set_chain([first.address, second.address], token=token)
        until(lambda: peer.status(second)["versions"] == [], "the version to go")


@pytest.mark.parametrize(
    "message",
    [
        {"op": "reveal"},
        {"op": "reveal", "version": 1, "stamp": "1"},
        {"op": "retire", "version": "1"},
        {"op": "retire", "keys": 7},
        {"op": "retire", "keys": [[1]]},
        {"op": "retire", "keys": [[1, -1]]},
        {"op": "set_next", "addresses": ["a:1", "a:1"]},
        {"op": "set_next", "addresses": "a:1"},
        {"op": "set_next", "addresses": ["a:1"] * 1000},
        {"op": "fetch", "source": "a:1", "version": 1, "timeout_s": -1},
        {"op": "pull", "version": 1, "wait_s": 0, "arriving": 1},
    ],
    ids=str,
)
def test_requests_that_are_none(serve, peer, message):
    with pytest.raises(ValueError, match="found"):
        peer.ask(serve(), message)


def test_a_relay_that_missed_the_reveal_goes_with_the_others(serve, peer, token, weights, check, until):
    """Its predecessor revealed version 2 and has it no more: a newer version takes the place of the sealed one."""
    first, second = serve(), serve(slot_timeout_s=1.0)
    set_chain([first.address, second.address], token=token)
    with Publisher(first.address, token=token) as publisher:
        publisher.publish(1, weights(1))
        publisher.publish(2, weights(2), sealed=True)
        until(lambda: peer.status(second)["sealed"] == [2], "the sealed version")
        set_chain([first.address], token=token)
        publisher.reveal(2)
        for version in (3, 4):
            publisher.publish(version, weights(version))
            publisher.wait(version, 20)
        set_chain([first.address, second.address], token=token)
    with RelayReader(second.address, token=token) as reader:
        until(lambda: reader.latest() == 4, "the newest version")
        with reader.lease(4) as held:
            check(held, 4)


def test_a_sealed_version_that_was_overtaken_holds_nobody_up(serve, peer, token, weights, until):
    relay = serve(slot_timeout_s=0.5)
    with Publisher(relay.address, token=token) as publisher:
        publisher.publish(1, weights(1), sealed=True)
        until(lambda: peer.status(relay)["sealed"] == [1], "the sealed version")
        for version in (2, 3):
            publisher.publish(version, weights(version))
            publisher.wait(version, 20)


def test_a_reveal_that_a_newer_version_overtakes_in_the_publisher_is_not_lost(serve, peer, token, weights, until):
    """Sealed on the relay, to be pushed again, revealed, and superseded: else the relay would wait for the reveal."""
    relay = serve(slot_timeout_s=1.0)
    with Publisher(relay.address, token=token) as publisher:
        publisher.publish(1, weights(1))
        publisher.wait(1, 20)
        publisher.publish(2, weights(2), sealed=True)
        until(lambda: peer.status(relay)["sealed"] == [2], "the sealed version")
        with publisher._changed:  # the pushing thread does not get its turn
            publisher.retarget(relay.address)
            publisher.reveal(2)
            publisher.publish(3, weights(3))
        publisher.wait(3, 20)
    with RelayReader(relay.address, token=token) as reader:
        assert reader.latest() == 3


def test_a_version_that_is_offered_again_does_not_overtake_the_next_one(serve, token, weights, monkeypatch):
    """Revealed while it is pushed, it is offered again after the next version, which was waiting: it stays the older one."""
    relay = serve(slots=3)
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        publisher.publish(0, weights(0))
        publisher.wait(0, 20)
        push = publisher._pusher.push

        def interrupted(staged, *args):
            sealed = push(staged, *args)
            if staged.version == 1 and sealed:
                publisher.publish(2, weights(2))
                publisher.reveal(1)
            return sealed

        monkeypatch.setattr(publisher._pusher, "push", interrupted)
        publisher.publish(1, weights(1), sealed=True)
        publisher.wait(1, 20)
        publisher.wait(2, 20)
        assert reader.versions()[-1] == 2


def test_an_older_version_that_is_offered_again_supersedes_nothing(serve, token, weights, monkeypatch):
    """It waits to be offered again, revealed; the newer one is pushed, cut off by `retarget`, and must be pushed again."""
    relay = serve(slots=3)
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        publisher.publish(0, weights(0))
        publisher.wait(0, 20)
        push, retargeted = publisher._pusher.push, []

        def interrupted(staged, *args):
            if staged.version == 2 and not retargeted:
                retargeted.append(True)
                publisher.retarget(relay.address)
            sealed = push(staged, *args)
            if staged.version == 1 and sealed:
                publisher.publish(2, weights(2))
                publisher.reveal(1)
            return sealed

        monkeypatch.setattr(publisher._pusher, "push", interrupted)
        publisher.publish(1, weights(1), sealed=True)
        publisher.wait(1, 20)
        publisher.wait(2, 20)
        assert reader.versions()[-1] == 2


def test_a_reveal_that_died_with_the_master_is_told_to_the_next_one(serve, peer, token, weights, until):
    first, second = serve(), serve(slot_timeout_s=1.0)
    set_chain([first.address, second.address], token=token)
    with Publisher(first.address, token=token) as publisher:
        publisher.publish(1, weights(1))
        publisher.wait(1, 20)
        publisher.publish(2, weights(2), sealed=True)
        until(lambda: peer.status(second)["sealed"] == [2], "the sealed version")
        set_chain([first.address], token=token)
        publisher.reveal(2)
        first.close()
        publisher.publish(3, weights(3))
        publisher.retarget(second.address)
        publisher.wait(3, 20)
    with RelayReader(second.address, token=token) as reader:
        assert reader.versions() == [2, 3]
