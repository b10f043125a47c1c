"""How chunks come is agreed on for every transfer; what arrives is the same whatever was agreed."""

import os
import random

import pytest

from tailrace.paramserver import ProtocolError, Publisher, RelayReader, set_chain
from tailrace.paramserver.clients.loans import MappedSegments
from tailrace.paramserver.errors import CodecUnknown, TransportUnavailable
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.manifest import checksum
from tailrace.paramserver.wire.agreement import WORTH_BYTES

CHUNK = 2**20
LARGE = random.Random(8).randbytes(WORTH_BYTES + 1000)


def steps(data, seed):
    """The same weights after a step that changed a few of them."""
    changed, rng = bytearray(data), random.Random(seed)
    for _ in range(len(data) // 1000):
        changed[rng.randrange(len(data))] ^= 1
    return bytes(changed)


def shows(relay, token, version, data):
    with RelayReader(relay.address, token=token) as reader, reader.lease(version, timeout_s=10) as held:
        assert bytes(held.raw()["w"].data) == data


@pytest.mark.parametrize("transports", [None, (), ("tcp",)], ids=["default", "none", "tcp"])
def test_relays_of_one_host_use_its_memory_or_what_they_are_told(serve, peer, token, transports):
    relays = [serve(transports=transports) for _ in range(3)]
    set_chain([relay.address for relay in relays], token=token)
    with Publisher(relays[0].address, token=token, chunk_bytes=CHUNK, transports=transports) as publisher:
        publisher.publish(1, [("w", LARGE)])
        publisher.wait(1, 20)
        for relay in relays:
            shows(relay, token, 1, LARGE)
        assert publisher.transfers["chunks_sent"] == 5
        on_the_connection = len(LARGE) if transports == () else 0
        assert publisher.transfers["payload_sent"] == on_the_connection
    for relay in relays:
        counts = peer.transfers(relay)
        assert (counts["chunks_received"], counts["payload_received"]) == (5, on_the_connection)


def test_a_reader_far_away_may_use_a_transport(serve, token):
    relay = serve(transports=("tcp",))
    with (
        Publisher(relay.address, token=token, chunk_bytes=CHUNK) as publisher,
        RelayReader(relay.address, token=token, same_host=False, transports=("tcp",)) as reader,
    ):
        publisher.publish(1, [("w", LARGE)])
        with reader.lease(1) as held:
            assert bytes(held.raw()["w"].data) == LARGE
        assert (reader.transfers["chunks_received"], reader.transfers["payload_received"]) == (5, 0)


@pytest.mark.parametrize(
    "descriptor",
    [
        {},
        {"transport": "shm", "socket": "/etc/passwd", "nbytes": 10, "secret": "x"},
        {"transport": "shm", "socket": "tailrace-export-" + "0" * 16, "nbytes": 2**70, "secret": "0" * 64},
        {"transport": "shm", "socket": "tailrace-export-none", "nbytes": len(LARGE), "secret": "0" * 64},
        {"transport": "tcp", "host": "127.0.0.1", "port": 1, "nbytes": 10, "secret": "0" * 64},
    ],
    ids=["empty", "elsewhere", "huge", "nobody", "another transport's"],
)
def test_memory_that_is_not_there_is_not_read(serve, peer, descriptor):
    relay, manifest = serve(), peer.manifest(LARGE, CHUNK)
    channel = peer.dial(relay)
    answer = peer.offer(channel, manifest, transports={"shm": descriptor})
    assert (answer["transport"], answer["missing"]) == ("inline", [[0, 5]])
    peer.send(channel, manifest, LARGE, *range(5))
    assert channel.answer(10) == {"complete": True}
    channel.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"transports": []},
        {"transports": {"shm": 7}},
        {"codecs": "delta"},
        {"codecs": [7]},
        {"bases": [[1]]},
        {"bases": [[-1, 2]]},
        {"bases": [[1, 2]] * 100},
        {"sealed": 1},
    ],
    ids=str,
)
def test_an_offer_that_is_none_is_refused(serve, peer, fields):
    channel = peer.dial(serve())
    with pytest.raises(ProtocolError, match="found"):
        peer.offer(channel, peer.manifest(b"1234", CHUNK), **fields)
    channel.close()


def test_ready_chunks_that_cannot_be_read_come_raw(serve, peer):
    """The sender says that they can be read where nothing was exported."""
    relay, manifest = serve(), peer.manifest(LARGE, CHUNK)
    channel = peer.dial(relay)
    peer.offer(channel, manifest)
    peer.send(channel, manifest, LARGE, 0, 1, 2)
    for index in (3, 4):
        offset, nbytes = manifest.chunk(index)
        channel.send_ready(index, checksum(LARGE[offset : offset + nbytes]), nbytes)
    assert channel.answer(10) == {"again": [[3, 5]]}
    peer.send(channel, manifest, LARGE, 3, 4)
    assert channel.answer(10) == {"complete": True}
    channel.close()
    assert peer.transfers(relay)["fallbacks"] == 2


@pytest.fixture
def chain(serve, token):
    """Two relays without shared memory between them, of which the second holds what the first does."""
    first, second = serve(transports=()), serve(transports=())
    set_chain([first.address, second.address], token=token)
    with Publisher(first.address, token=token, chunk_bytes=CHUNK, transports=()) as publisher:
        yield publisher, first, second


def test_a_step_is_sent_as_a_delta(chain, peer, token):
    pytest.importorskip("numpy")
    publisher, first, second = chain
    data = LARGE
    for version in range(1, 5):
        publisher.publish(version, [("w", data)])
        publisher.wait(version, 20)
        for relay in (first, second):
            shows(relay, token, version, data)
        data = steps(data, version)
    for counts in (publisher.transfers, peer.transfers(first)):
        assert counts["chunks_encoded"] > 0  # at least to find out how fast it is
        assert counts["payload_sent"] < counts["bytes_sent"] == 4 * len(LARGE)
    assert peer.transfers(second)["fallbacks"] == 0


def test_a_base_that_differs_costs_time_and_nothing_else(chain, peer, token):
    pytest.importorskip("numpy")
    publisher, first, second = chain
    publisher.publish(1, [("w", LARGE)])
    publisher.wait(1, 20)
    shows(second, token, 1, LARGE)
    view = second._table.complete_slots()[0].memory.view
    for offset in range(0, len(LARGE), CHUNK // 2):
        view[offset] ^= 0xFF
    data = steps(LARGE, 2)
    publisher.publish(2, [("w", data)])
    shows(second, token, 2, data)
    counts = peer.transfers(second)
    assert counts["fallbacks"] > 0
    assert counts["fallbacks"] == peer.transfers(first)["chunks_resent"]


def test_another_layout_is_no_base(chain, peer, token):
    publisher, first, second = chain
    publisher.publish(1, [("w", LARGE)])
    publisher.wait(1, 20)
    publisher.publish(2, [("v", LARGE)])
    publisher.wait(2, 20)
    with RelayReader(second.address, token=token) as reader, reader.lease(2) as held:
        assert bytes(held.raw()["v"].data) == LARGE
    assert peer.transfers(first)["chunks_encoded"] == publisher.transfers["chunks_encoded"] == 0


def test_a_payload_that_is_none_comes_raw(serve, peer, token):
    relay = serve()
    manifest = peer.manifest(LARGE, CHUNK)
    newer = peer.manifest(LARGE, CHUNK, version=2, stamp=2)
    channel = peer.dial(relay)
    peer.offer(channel, manifest)
    peer.send(channel, manifest, LARGE, *range(5))
    channel.answer(10)
    answer = peer.offer(channel, newer, codecs=["zip", "delta"], bases=[[7, 7], [1, 1]])
    assert (answer["codec"], answer["base"]) == ("delta", [1, 1])
    for index in range(5):
        offset, nbytes = newer.chunk(index)
        value = checksum(LARGE[offset : offset + nbytes])
        channel.send_encoded(index, value, nbytes, os.urandom(min(nbytes - 1, 100 * index)))
    assert channel.answer(10) == {"again": [[0, 5]]}
    peer.send(channel, newer, LARGE, *range(5))
    assert channel.answer(10) == {"complete": True}
    channel.close()
    shows(relay, token, 2, LARGE)


@pytest.mark.parametrize("name", ["/etc/passwd", "tailrace-/../../etc/passwd", "other", "", "tailrace-x\0y"])
def test_a_segment_is_mapped_only_by_a_name_of_ours(name):
    with pytest.raises((ProtocolError, ValueError)):
        MappedSegments(HOST).map(name, "nonce", 1, 10, "somewhere")
    with pytest.raises(ProtocolError):
        MappedSegments(HOST).map("tailrace-abc", "nonce", "1", 10, "somewhere")


def test_means_that_do_not_exist(serve, token):
    with pytest.raises(TransportUnavailable, match="carrier pigeon"):
        serve(transports=("carrier pigeon",))
    with pytest.raises(CodecUnknown, match="zip"):
        Publisher("127.0.0.1:1", token=token, codecs=("zip",))
