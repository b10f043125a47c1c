"""Relays that pull from each other: one puller at a time, resumed elsewhere when a source is killed, whole or not at all."""

import hashlib
import os
import random
import threading
import time

import pytest

from tailrace.paramserver import (
    Publisher,
    RelayReader,
    RelayUnreachable,
    SourceBusy,
    VersionNotYet,
    VersionRetired,
    fetch,
    relay_status,
)

CHUNK = 4096
COUNT = 16
DATA = random.Random(7).randbytes(COUNT * CHUNK)
BIG_CHUNK = 2**18
BIG = 384  # chunks


def publish(relay, token, data=DATA, chunk_bytes=CHUNK, version=1, **options):
    with Publisher(relay.address, token=token, chunk_bytes=chunk_bytes) as publisher:
        publisher.publish(version, [("w", data)], stamp=9, **options)
        if not options:
            publisher.wait(version, 60)


def content(relay, token, version=1):
    with RelayReader(relay.address, token=token) as reader, reader.lease(version, timeout_s=10) as held:
        return hashlib.sha256(held.raw()["w"].data).digest()


def test_a_version_comes_from_the_first_that_gives_it_and_is_not_asked_for_twice(serve, token):
    source, relay, gone = serve(), serve(), "127.0.0.1:1"
    publish(source, token)
    found = fetch(relay.address, 1, [gone, source.address], token=token, timeout_s=20)
    assert found == source.address
    assert content(relay, token) == hashlib.sha256(DATA).digest()
    source.close()
    assert fetch(relay.address, 1, [gone], token=token, timeout_s=20) == ""


def test_a_source_has_one_puller_at_a_time(serve, peer, token):
    source, first, second = serve(pullers=1), serve(), serve()
    publish(source, token)
    pulling = peer.dial(source)
    pulling.request({"op": "pull", "version": 1, "wait_s": 1}, 10)  # it is offered the version, and takes its time
    began = time.monotonic()
    with pytest.raises(SourceBusy, match="serves 1 others"):
        peer.ask(source, {"op": "pull", "version": 1, "wait_s": 0.2})
    with pytest.raises(VersionNotYet, match=r"not complete on the relay .* in 1.5 s"):
        fetch(first.address, 1, [source.address], token=token, timeout_s=1.5)
    assert time.monotonic() - began < 10
    with RelayReader(source.address, token=token) as near, near.lease(1):
        pass  # who shares its memory takes nobody's turn
    pulling.close()  # a puller that dies gives its turn back
    assert fetch(first.address, 1, [source.address], token=token, timeout_s=20) == source.address
    assert fetch(second.address, 1, [source.address], token=token, timeout_s=20) == source.address


def test_a_busy_source_is_waited_for_or_left_for_one_that_is_free(serve, peer, token):
    busy, free, relay, other, relay_without = serve(pullers=1), serve(pullers=1), serve(), serve(), serve()
    for source in (busy, free):
        publish(source, token)
    pulling = peer.dial(busy)
    pulling.request({"op": "pull", "version": 1, "wait_s": 1}, 10)
    assert fetch(relay.address, 1, [busy.address, free.address], token=token, timeout_s=20) == free.address
    with pytest.raises(VersionNotYet):  # one that lacks the version is not waited for
        fetch(other.address, 1, [relay_without.address], token=token, timeout_s=60, patient=False)
    threading.Timer(0.5, pulling.close).start()
    assert fetch(other.address, 1, [busy.address], token=token, timeout_s=20, patient=False) == busy.address


def test_nothing_comes_from_one_that_has_not_all_of_it(serve, peer, token):
    """Half of a version, and a sealed one, are nobody's source; both are waited for until the deadline."""
    source, sealed, relay = serve(), serve(), serve()
    manifest = peer.manifest(DATA, CHUNK)
    channel = peer.dial(source)
    peer.offer(channel, manifest)
    peer.send(channel, manifest, DATA, *range(COUNT // 2))
    publish(sealed, token, sealed=True)
    with pytest.raises(VersionNotYet):
        fetch(relay.address, 1, [source.address, sealed.address], token=token, timeout_s=1.0)
    assert relay_status(relay.address, token=token).partial == relay_status(relay.address, token=token).receiving == {}
    peer.send(channel, manifest, DATA, *range(COUNT // 2, COUNT))
    assert channel.answer(10) == {"complete": True}
    channel.close()
    assert fetch(relay.address, 1, [source.address], token=token, timeout_s=20) == source.address


def test_it_ends_at_once_where_nobody_can_give_it(serve, token):
    newer, relay = serve(), serve()
    publish(newer, token, version=3)
    began = time.monotonic()
    with pytest.raises(VersionRetired):
        fetch(relay.address, 1, ["127.0.0.1:1", newer.address], token=token, timeout_s=60)
    with pytest.raises(RelayUnreachable):
        fetch(relay.address, 1, ["127.0.0.1:1"], token=token, timeout_s=60)
    with pytest.raises(RelayUnreachable, match="no source"):
        fetch(relay.address, 1, [], token=token, timeout_s=60)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("transport", ["tcp", "ucx"])
def test_peers_send_by_the_transport_that_they_have(serve, token, transport):
    if transport == "ucx":
        pytest.importorskip("ucxx")
    source, relay = (serve(transports=[transport], codecs=[]) for _ in range(2))
    publish(source, token)
    assert fetch(relay.address, 1, [source.address], token=token, timeout_s=30) == source.address
    assert content(relay, token) == hashlib.sha256(DATA).digest()
    counts = relay_status(relay.address, token=token).transfers
    assert (counts["bytes_received"], counts["fallbacks"]) == (len(DATA), 0)


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.deep)])
@pytest.mark.cases(1)
def test_sources_that_are_killed_in_mid_transfer_cost_no_more_than_what_was_on_its_way(
    spawn, peer, token, until, kills
):
    """Each round a fresh relay pulls from the one before, which is killed by SIGKILL once some chunks have come."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    data = draw.randbytes(BIG * BIG_CHUNK)
    expected = hashlib.sha256(data).digest()
    options = {"transports": [], "codecs": [], "pullers": 1}
    keeper, doomed = spawn(**options), spawn(**options)
    publish(keeper, token, data, BIG_CHUNK)
    fetch(doomed.address, 1, [keeper.address], token=token, timeout_s=60)
    resumed = 0
    for _ in range(kills):
        relay, some, found = spawn(**options), draw.randrange(1, BIG // 2), []
        sources = [doomed.address, keeper.address]
        thread = threading.Thread(
            target=lambda to=relay, of=sources, into=found: into.append(
                fetch(to.address, 1, of, token=token, timeout_s=60)
            )
        )
        thread.start()

        def arrived(status=relay.address):
            now = relay_status(status, token=token)
            return int(now.receiving.get("1", "0/").split("/")[0]) or (BIG if now.versions else 0)

        until(lambda least=some, so_far=arrived: so_far() >= least, "the first chunks")
        os.kill(doomed.pid, 9)
        before = relay_status(relay.address, token=token)
        thread.join(60)
        counts = relay_status(relay.address, token=token).transfers
        assert len(found) == 1
        if found == [keeper.address]:
            resumed += 1
            assert before.versions == ()  # nothing was shown of what had come
        assert counts["chunks_received"] == BIG  # what came before the kill did not come again
        assert counts["bytes_received"] == len(data)
        assert content(relay, token) == expected
        doomed.close()
        doomed = relay
    assert resumed >= kills // 2, f"only {resumed} of {kills} sources were still sending when they were killed"
