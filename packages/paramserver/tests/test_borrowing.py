"""A publisher on the relay's host copies a version into the relay's memory, and nobody copies it again."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.paramserver import (
    NotEnoughSharedMemory,
    ProtocolError,
    Publisher,
    RelayReader,
    RelayServer,
    RelayUnreachable,
)
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.machine.segments import SegmentOwner
from tailrace.paramserver.manifest import Manifest, TensorSpec
from tailrace.paramserver.relays.slots import SlotTable
from tailrace.paramserver.wire.authentication import connect

SIZE = 5 * 2**20
CHUNK = 2**20


def data_of(version, size=SIZE):
    return random.Random(version).randbytes(size)


def shows(relay, token, version, data=None):
    for near in (True, False):
        reader = RelayReader(relay.address, token=token, same_host=near)
        with reader, reader.lease(version, timeout_s=20) as held:
            assert bytes(held.raw()["w"].data) == (data_of(version) if data is None else data)


def segments(relay, token):
    channel, welcome = connect(HOST, relay.address, token=token, timeout_s=10, stall_s=10)
    channel.close()
    return sorted(Path("/dev/shm").glob(welcome["owner_segment"].removesuffix("o") + "*"))


def own_bytes(publisher):
    return sum(staged.memory._size for staged in publisher._staged)


def borrow(channel, nbytes=None, op="stage", **fields):
    message = {"op": op, **({} if nbytes is None else {"nbytes": nbytes}), **fields}
    answer = channel.request(message, 10)
    return (channel.answer(20) if answer.get("making") else answer)["loan"]


@pytest.fixture
def publish_to(token):
    publishers = []

    def start(relay, **options):
        publishers.append(Publisher(relay.address, token=token, chunk_bytes=CHUNK, **options))
        return publishers[-1]

    yield start
    for publisher in publishers:
        publisher.close()


@pytest.mark.parametrize("kind", ["list", "generator"])
def test_no_copy_but_the_one(serve, publish_to, peer, token, until, kind):
    relay = serve()
    publisher = publish_to(relay)
    if kind == "generator":
        publisher.prepare(SIZE)
    for version in range(8):
        weights = [("w", data_of(version))]
        publisher.publish(version, weights if kind == "list" else (item for item in weights))
        publisher.wait(version, 20)
        shows(relay, token, version)
        assert own_bytes(publisher) == 0
        assert len(segments(relay, token)) <= 1 + 3  # its record, two slots, and what is filled next
    assert publisher.transfers["chunks_sent"] == 8 * 5
    assert publisher.transfers["payload_sent"] == peer.transfers(relay)["payload_received"] == 0


def test_a_lease_outlives_what_is_borrowed(serve, publish_to, token):
    relay = serve()
    publisher = publish_to(relay)
    publisher.publish(0, [("w", data_of(0))])
    publisher.wait(0, 20)
    with RelayReader(relay.address, token=token) as reader, reader.lease(0) as held:
        for version in range(1, 6):
            publisher.publish(version, [("w", data_of(version))])
            assert bytes(held.raw()["w"].data) == data_of(0)
        held.verify()
    publisher.wait(5, 20)
    shows(relay, token, 5)


def test_a_version_larger_than_thought(serve, publish_to, token):
    relay = serve()
    publisher = publish_to(relay)
    for version, size in enumerate([SIZE, 3 * SIZE, SIZE, 4 * SIZE]):
        data = data_of(version, size)
        pieces = [(f"w{i}", data[i * CHUNK : (i + 1) * CHUNK]) for i in range(size // CHUNK)]
        publisher.publish(version, (piece for piece in pieces))
        publisher.wait(version, 20)
        with RelayReader(relay.address, token=token) as reader, reader.lease(version) as held:
            assert b"".join(bytes(raw.data) for raw in held.raw().values()) == data


def test_a_relay_on_another_host_lends_nothing(serve, publish_to, token, monkeypatch):
    relay = serve()
    monkeypatch.setattr(type(HOST), "owner_nonce", lambda self, name: None)
    publisher = publish_to(relay)
    publisher.publish(0, [("w", data_of(0))])
    publisher.wait(0, 20)
    assert own_bytes(publisher) >= SIZE
    reader = RelayReader(relay.address, token=token, same_host=False)
    with reader, reader.lease(0) as held:
        assert bytes(held.raw()["w"].data) == data_of(0)


def test_a_suspended_relay_is_asked_once(spawn, publish_to, token):
    relay = spawn()
    publisher = publish_to(relay, stall_s=1)
    os.kill(relay.pid, signal.SIGSTOP)
    try:
        stalls = [publisher.publish(version, [("w", data_of(version))]) for version in range(4)]
    finally:
        os.kill(relay.pid, signal.SIGCONT)
    assert stalls[0] < 5
    assert max(stalls[1:]) < 0.4
    publisher.retarget(relay.address)
    publisher.wait(3, 20)
    shows(relay, token, 3)


@pytest.mark.parametrize("when", ["before the push", "after the push"])
def test_a_killed_relay_does_not_take_what_was_borrowed(spawn, publish_to, token, when):
    relay, fresh = spawn(), spawn()
    publisher = publish_to(relay)
    if when == "before the push":
        publisher.prepare(SIZE)
        relay.kill()
        publisher.publish(1, [("w", data_of(1))])
        with pytest.raises(RelayUnreachable):
            publisher.wait(1, 20)
    else:
        publisher.publish(1, [("w", data_of(1))])
        publisher.wait(1, 20)
        relay.kill()
    assert own_bytes(publisher) == 0
    again = RelayServer(relay.name, token=token)  # its next life removes what it left, and lends to others
    other = publish_to(again)
    other.publish(7, [("w", data_of(7))])
    other.wait(7, 20)
    publisher.retarget(fresh.address)
    publisher.wait(1, 20)
    shows(fresh, token, 1)
    again.close()


def test_what_was_borrowed_is_written_by_nobody_else(serve, publish_to, peer, token):
    """Others publish until the version is gone from the relay. Its publisher still has it, whole, for another master."""
    relay, fresh = serve(), serve()
    first, second, third = publish_to(relay), publish_to(relay), publish_to(relay, transports=())
    first.publish(1, [("w", data_of(1))])
    first.wait(1, 20)
    for version in range(2, 8):
        publisher = second if version % 2 else third
        publisher.publish(version, [("w", data_of(version))])
        publisher.wait(version, 20)
        shows(relay, token, version)
    assert own_bytes(first) == own_bytes(second) == 0
    first.retarget(fresh.address)
    first.wait(1, 20)
    shows(fresh, token, 1)


TRAINER = """
import os, sys, time
from tailrace.paramserver import Publisher
publisher = Publisher(sys.argv[1], token=os.environ["T"])
publisher.prepare(int(sys.argv[2]))
def weights():
    yield "a", bytes(1000)
    print("filling", flush=True)
    time.sleep(60)
publisher.publish(1, weights())
"""


def test_a_trainer_killed_while_it_fills(serve, publish_to, peer, token, until):
    relay = serve()
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, relay.address, str(SIZE)],
        stdout=subprocess.PIPE,
        env={**os.environ, "T": token},
    )
    with trainer:
        assert trainer.stdout.readline() == b"filling\n"
        assert len(segments(relay, token)) == 2
        trainer.kill()
    until(lambda: len(segments(relay, token)) == 1, "the relay to take it back")
    assert peer.status(relay)["versions"] == []
    publisher = publish_to(relay)
    publisher.publish(1, [("w", data_of(1))])
    publisher.wait(1, 20)
    shows(relay, token, 1)
    assert own_bytes(publisher) == 0


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"op": "stage"}, ProtocolError),
        ({"op": "stage", "nbytes": -1}, ProtocolError),
        ({"op": "stage", "nbytes": 2**70}, ProtocolError),
        ({"op": "stage", "nbytes": "1"}, ProtocolError),
        ({"op": "stage", "nbytes": 1, "recycled": 1}, ProtocolError),
        ({"op": "stage", "nbytes": 2**50}, NotEnoughSharedMemory),
        ({"op": "unstage", "loan": 1}, ProtocolError),
        ({"op": "unstage"}, ProtocolError),
    ],
    ids=str,
)
def test_requests_for_memory_that_are_none(serve, peer, token, message, error):
    relay = serve()
    channel = peer.dial(relay)
    with pytest.raises(error):
        borrow(channel, **message)
    channel.close()
    assert len(segments(relay, token)) == 1
    assert borrow(peer.dial(relay), 10) is not None


def test_what_is_lent_is_lent_once(serve, peer, until):
    relay = serve()
    borrower = peer.dial(relay)
    loan = borrow(borrower, 100)
    assert peer.ask(relay, {"op": "stage", "nbytes": 100}) == {"loan": None}
    with pytest.raises(ProtocolError, match="this connection"):
        peer.ask(relay, {"op": "unstage", "loan": loan})
    borrower.close()
    until(lambda: borrow(peer.dial(relay), 100), "the loan to end with its connection")


def test_a_loan_that_is_too_small_for_what_is_offered_in_it(serve, peer):
    relay, data = serve(), data_of(1, 3 * CHUNK)
    channel = peer.dial(relay)
    loan = borrow(channel, 100)
    with pytest.raises(ProtocolError, match="which is smaller"):
        peer.offer(channel, peer.manifest(data, CHUNK), loan=loan)
    channel.close()
    assert peer.status(relay)["versions"] == []


def test_what_is_in_a_loan_is_verified(serve, peer, token):
    """The publisher's checksums are of other bytes than those that lie there: they come raw."""
    relay, data = serve(), data_of(1, 2 * CHUNK)
    channel = peer.dial(relay)
    loan = borrow(channel, len(data))
    manifest = peer.manifest(data, CHUNK)
    answer = peer.offer(channel, manifest, loan=loan)
    assert answer["transport"] == "in place"
    from tailrace.paramserver.manifest import checksum

    for index in range(2):
        channel.send_ready(index, checksum(data[index * CHUNK : (index + 1) * CHUNK]), CHUNK)
    assert channel.answer(10) == {"again": [[0, 2]]}
    peer.send(channel, manifest, data, 0, 1)
    assert channel.answer(10) == {"complete": True}
    channel.close()
    shows(relay, token, 1, data)


def test_a_loan_that_is_none_is_an_offer_like_any(serve, peer, token):
    relay, data = serve(), data_of(1, CHUNK)
    channel = peer.dial(relay)
    manifest = peer.manifest(data, CHUNK)
    assert peer.offer(channel, manifest, loan=77)["transport"] == "inline"
    peer.send(channel, manifest, data, 0)
    assert channel.answer(10) == {"complete": True}
    channel.close()
    shows(relay, token, 1, data)


def test_an_offer_whose_loan_an_earlier_one_took_goes_on_with_bytes(relay_name):
    """A push to a suspended relay is broken off and offered again before the relay has looked at the first offer."""
    owner = SegmentOwner(relay_name)
    try:
        table = SlotTable(owner, 2)
        manifest = Manifest(1, 1, 64, 128, (TensorSpec("w", "uint8", (128,), 0, 128),))
        loan = table.staging.lend("publisher", 128, recycled=False)
        first = table.reserve(manifest, 0, loan=loan.id)
        assert first.publication.in_place
        assert first.memory is loan.segment
        table.arrived(first.publication, 0, 7)
        table.interrupt(first)
        again = table.reserve(manifest, 0, loan=loan.id)
        assert again is first
        assert not again.publication.in_place
        assert again.publication.missing() == [1]
    finally:
        owner.close()
