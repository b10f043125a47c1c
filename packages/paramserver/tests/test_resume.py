"""What arrived of a version before its transfer broke is kept, and only the rest comes again, from whoever has it."""

import dataclasses
import itertools
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.paramserver import ProtocolError, Publisher, RelayReader, SlotBusy, VersionRetired
from tailrace.paramserver.wire.agreement import from_ranges, to_ranges

CHUNK = 4096
COUNT = 8
DATA = random.Random(5).randbytes(COUNT * CHUNK - 100)


def interrupted(peer, relay, manifest, *indices, data=DATA):
    """A sender that dies after these chunks."""
    channel = peer.dial(relay)
    answer = peer.offer(channel, manifest)
    peer.send(channel, manifest, data, *indices)
    channel.close()
    return answer


def whole(reader, version, data=DATA):
    with reader.lease(version, timeout_s=10) as held:
        held.verify()
        assert bytes(held.raw()["w"].data) == data


def test_the_next_sender_is_asked_for_what_is_missing(serve, peer, token, until):
    relay = serve()
    manifest = peer.manifest(DATA, CHUNK)
    assert interrupted(peer, relay, manifest, 0, 1, 5)["missing"] == [[0, COUNT]]
    until(lambda: peer.status(relay)["partial"] == {"1": "3/8 chunks"}, "the relay to notice")
    assert peer.status(relay)["versions"] == []
    assert interrupted(peer, relay, manifest, 3)["missing"] == [[2, 5], [6, 8]]
    until(lambda: peer.status(relay)["partial"] == {"1": "4/8 chunks"}, "the relay to notice")
    channel = peer.dial(relay)
    assert peer.offer(channel, manifest)["missing"] == [[2, 3], [4, 5], [6, 8]]
    peer.send(channel, manifest, DATA, 7, 2, 6, 4)  # in any order
    assert channel.answer(10) == {"complete": True}
    channel.close()
    with RelayReader(relay.address, token=token) as near:
        whole(near, 1)
    counts = peer.transfers(relay)
    assert (counts["chunks_received"], counts["bytes_received"]) == (COUNT, len(DATA))


def test_a_stopped_sender_may_go_on_on_the_same_connection(serve, peer):
    relay, manifest = serve(), peer.manifest(DATA, CHUNK)
    channel = peer.dial(relay)
    peer.offer(channel, manifest)
    peer.send(channel, manifest, DATA, 0, 1)
    channel.send_stop()
    assert channel.answer(10) == {"partial": True}
    assert peer.offer(channel, manifest)["missing"] == [[2, 8]]
    channel.close()


def test_a_publisher_sends_the_rest_of_what_another_began(serve, peer, token, until):
    """Data-parallel roots publish one key; here the first root dies in the middle of its push."""
    relay = serve()
    manifest = peer.manifest(DATA, CHUNK, version=3, stamp=77)
    interrupted(peer, relay, manifest, *range(5))
    until(lambda: "3" in peer.status(relay)["partial"], "the relay to notice")
    with Publisher(relay.address, token=token, chunk_bytes=CHUNK) as publisher:
        publisher.publish(3, [("w", DATA)], stamp=77)
        publisher.wait(3, 20)
        assert publisher.transfers["chunks_sent"] == 3
    with RelayReader(relay.address, token=token) as near:
        whole(near, 3)


@pytest.mark.parametrize("other", ["stamp", "chunks", "tensors"])
def test_only_the_same_publication_is_gone_on_with(serve, peer, until, other):
    relay, manifest = serve(), peer.manifest(DATA, CHUNK)
    interrupted(peer, relay, manifest, 0, 1)
    until(lambda: peer.status(relay)["partial"] != {}, "the relay to notice")
    changed = {
        "stamp": dataclasses.replace(manifest, stamp=2),
        "chunks": dataclasses.replace(manifest, chunk_bytes=CHUNK - 1),
        "tensors": dataclasses.replace(manifest, tensors=(dataclasses.replace(manifest.tensors[0], dtype="int8"),)),
    }[other]
    channel = peer.dial(relay)
    assert peer.offer(channel, changed)["missing"] == [[0, changed.chunk_count]]
    channel.close()


def test_a_newer_version_takes_the_place_of_a_partial_one(serve, peer, token, until):
    relay = serve()
    interrupted(peer, relay, peer.manifest(DATA, CHUNK), 0)
    until(lambda: peer.status(relay)["partial"] != {}, "the relay to notice")
    with Publisher(relay.address, token=token, chunk_bytes=CHUNK) as publisher:
        publisher.publish(2, [("w", DATA)])
        publisher.wait(2, 20)
    assert peer.status(relay)["partial"] == {}
    assert interrupted(peer, relay, peer.manifest(DATA, CHUNK, stamp=2**61))["missing"] == [[0, COUNT]]


def test_a_partial_version_is_kept_for_a_while(serve, peer, until):
    relay, manifest = serve(partial_s=0.3), peer.manifest(DATA, CHUNK)
    interrupted(peer, relay, manifest, 0)
    until(lambda: peer.status(relay)["partial"] == {"1": "1/8 chunks"}, "the relay to notice")
    until(lambda: peer.status(relay)["partial"] == {}, "the relay to forget")
    assert interrupted(peer, relay, manifest)["missing"] == [[0, COUNT]]


def test_an_older_version_does_not_cost_the_newer_one_its_chunks(serve, peer, token, until):
    relay = serve()
    with Publisher(relay.address, token=token, chunk_bytes=CHUNK) as publisher:
        publisher.publish(1, [("w", DATA)], stamp=1)
        publisher.wait(1, 20)
    newer = peer.manifest(DATA, CHUNK, version=5, stamp=5)
    interrupted(peer, relay, newer, 0, 1)
    until(lambda: peer.status(relay)["partial"] != {}, "the relay to notice")
    with pytest.raises(SlotBusy, match="version 5, which is newer"):
        peer.offer(peer.dial(relay), peer.manifest(DATA, CHUNK, version=4, stamp=4))
    assert interrupted(peer, relay, newer)["missing"] == [[2, 8]]


def test_a_sender_that_stands_still_gives_way(serve, peer, token):
    """A cut link, of which nobody is told: the other sender does not wait for the stall to be noticed."""
    relay, manifest = serve(stall_s=60, takeover_s=0.3), peer.manifest(DATA, CHUNK)
    stuck = peer.dial(relay)
    peer.offer(stuck, manifest)
    peer.send(stuck, manifest, DATA, 0, 1)
    other = peer.dial(relay)
    assert peer.offer(other, manifest)["missing"] == [[2, 8]]
    peer.send(other, manifest, DATA, *range(2, COUNT))
    assert other.answer(10) == {"complete": True}
    assert peer.transfers(relay)["takeovers"] == 1
    for channel in (stuck, other):
        channel.close()


def test_forwarding_begins_with_what_is_there(serve, peer, token, until):
    """The chunks that lack in the middle of the way hold up only themselves."""
    first, second = serve(), serve()
    manifest = peer.manifest(DATA, CHUNK)
    interrupted(peer, first, manifest, 2, 3, 6)
    until(lambda: peer.status(first)["partial"] != {}, "the relay to notice")
    peer.ask(first, {"op": "set_next", "addresses": [second.address]})
    channel = peer.dial(first)
    assert peer.offer(channel, manifest)["missing"] == [[0, 2], [4, 6], [7, 8]]
    until(lambda: peer.status(second)["receiving"] == {"1": "3/8 chunks"}, "what is there to be forwarded")
    peer.send(channel, manifest, DATA, 7, 5)
    until(lambda: peer.status(second)["receiving"] == {"1": "5/8 chunks"}, "the rest to follow")
    channel.close()
    until(lambda: peer.status(second)["partial"] == {"1": "5/8 chunks"}, "the next hop to be let go")
    with Publisher(first.address, token=token, chunk_bytes=CHUNK) as publisher:
        publisher.publish(1, [("w", DATA)], stamp=1)
        publisher.wait(1, 20)
    with RelayReader(second.address, token=token) as reader:
        whole(reader, 1)
    assert peer.transfers(first)["chunks_sent"] == peer.transfers(second)["chunks_received"] == COUNT
    assert peer.transfers(first)["chunks_resent"] == 0


@pytest.mark.parametrize(
    "again",
    [[[0, 9]], [[3, 2]], [[2, 4], [3, 5]], [[4, 5], [1, 2]], [[0, 2**62]], [[-1, 1]], [[0, 1, 2]], [["0", 1]], 7, None],
    ids=str,
)
def test_ranges_that_are_none_are_refused_by_the_sender(serve, peer, token, again):
    relay = serve()
    with Publisher(relay.address, token=token, chunk_bytes=CHUNK) as publisher:
        publisher.publish(1, [("w", DATA)])
        publisher.wait(1, 20)
    channel = peer.dial(relay)
    offer = channel.request({"op": "pull", "version": 1, "wait_s": 0}, 10)
    assert offer["op"] == "offer"
    with pytest.raises(ProtocolError, match="found"):
        channel.request({"go": True, "missing": again}, 10)
    channel.close()
    assert peer.transfers(relay)["chunks_sent"] == 0


@pytest.mark.parametrize("choice", [{"transport": "carrier pigeon"}, {"codec": "zip", "base": [0, 0]}, {"codec": 3}])
def test_a_receiver_chooses_what_was_offered(serve, peer, token, choice):
    relay = serve()
    with Publisher(relay.address, token=token, chunk_bytes=CHUNK) as publisher:
        publisher.publish(1, [("w", DATA)])
        publisher.wait(1, 20)
    channel = peer.dial(relay)
    channel.request({"op": "pull", "version": 1, "wait_s": 0}, 10)
    with pytest.raises(ProtocolError, match="found"):
        channel.request({"go": True, "missing": [[0, 1]], **choice}, 10)
    channel.close()


@pytest.mark.parametrize(
    "header",
    [
        (0, CHUNK, 0, CHUNK - 1, 0),
        (0, CHUNK, 0, CHUNK, 1),
        (0, CHUNK, 0, 1, 2),
        (0, CHUNK, 0, 0, 9),
        (0, CHUNK, 0, 5, 1),
    ],
    ids=["short raw", "long encoded", "ready with payload", "unknown kind", "encoded without codec"],
)
def test_payloads_that_do_not_fit_are_refused(serve, peer, header):
    import struct

    relay, manifest = serve(), peer.manifest(DATA, CHUNK)
    channel = peer.dial(relay)
    peer.offer(channel, manifest)
    channel._send_all(struct.pack("!IIQIB", *header) + os.urandom(5))
    with pytest.raises(ProtocolError, match="expected"):
        channel.answer(10)
    channel.close()
    assert peer.status(relay)["versions"] == []


def test_a_chunk_may_come_damaged_only_so_often(serve, peer):
    relay, manifest = serve(), peer.manifest(DATA, CHUNK)
    channel = peer.dial(relay)
    peer.offer(channel, manifest)
    peer.send(channel, manifest, DATA, 0, 1, 2)
    bad = bytes(len(DATA))
    for _ in range(2):
        for index in range(3, COUNT):
            offset, nbytes = manifest.chunk(index)
            channel.send_chunk(index, 1, -1, memoryview(bad), offset, nbytes)
        assert channel.answer(10) == {"again": [[3, 8]]}
    for index in range(3, COUNT):
        offset, nbytes = manifest.chunk(index)
        channel.send_chunk(index, 1, -1, memoryview(bad), offset, nbytes)
    with pytest.raises(ValueError, match="damaged on the way"):
        channel.answer(10)
    assert peer.offer(channel, manifest)["missing"] == [[3, 8]]  # what was good is kept, and the connection
    channel.close()
    assert peer.transfers(relay)["chunks_damaged"] == 15


def test_a_retired_publication_does_not_come_back(serve, peer, until):
    relay, manifest = serve(), peer.manifest(DATA, CHUNK)
    interrupted(peer, relay, manifest, 0)
    until(lambda: peer.status(relay)["partial"] != {}, "the relay to notice")
    assert peer.ask(relay, {"op": "retire", "version": 1}) == {"retired": [[1, 1]]}
    assert peer.status(relay)["partial"] == {}
    with pytest.raises(VersionRetired, match="version 1 was retired"):
        peer.offer(peer.dial(relay), manifest)


@settings(deadline=None)
@given(st.sets(st.integers(0, 40)))
def test_ranges_name_exactly_the_chunks(indices):
    ranges = to_ranges(sorted(indices))
    assert from_ranges(ranges, 41) == sorted(indices)
    assert all(first < end for first, end in ranges)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
