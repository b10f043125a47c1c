"""Readers and relays that go on with another relay when theirs dies, with what they have."""

import contextlib
import os
import random
import signal
import threading
import time

import pytest

from tailrace.paramserver import (
    ProtocolError,
    Publisher,
    RelayReader,
    RelayTimeout,
    RelayUnreachable,
    VersionNotYet,
    VersionRetired,
)
from tailrace.paramserver.wire.agreement import from_ranges

CHUNK = 4096
COUNT = 16
DATA = random.Random(6).randbytes(COUNT * CHUNK)


@pytest.fixture
def holding(serve, peer, token):
    """Relays that hold version 1, all the same publication."""

    def start(count, begin=serve, **options):
        relays = [begin(**options) for _ in range(count)]
        for relay in relays:
            with Publisher(relay.address, token=token, chunk_bytes=CHUNK) as publisher:
                publisher.publish(1, [("w", DATA)], stamp=9)
                publisher.wait(1, 20)
        return relays

    return start


class DyingSource:
    """A relay that offers version 1 and is gone after some of its chunks."""

    def __init__(self, relay, token, chunks):
        from tailrace.paramserver.machine.host import HOST
        from tailrace.paramserver.wire.authentication import admit
        from tailrace.paramserver.wire.channel import Channel

        self._listener = HOST.listen("127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._listener.port}"
        self.asked = 0

        def run():
            while (accepted := self._listener.accept()) is not None:
                channel = Channel(accepted[0], 10, "client")
                with contextlib.suppress(RelayUnreachable):
                    admit(channel, token, {"name": "dying", "pid": 0, "owner_segment": "none", "nonce": ""})
                    channel.receive(10)
                    self.asked += 1
                    channel.send(relay[0])
                    missing = from_ranges(channel.receive(10)["missing"], COUNT)
                    for index in missing[:chunks]:
                        relay[1](channel, index)
                channel.close()

        threading.Thread(target=run, daemon=True).start()

    def close(self):
        self._listener.close()


@pytest.fixture
def dying(peer, token):
    sources = []

    def start(chunks):
        manifest = peer.manifest(DATA, CHUNK, stamp=9)
        offer = {"op": "offer", "manifest": manifest.to_wire()}
        sources.append(DyingSource((offer, lambda c, i: peer.send(c, manifest, DATA, i)), token, chunks))
        return sources[-1]

    yield start
    for source in sources:
        source.close()


@pytest.mark.parametrize("how", ["list", "callable"])
def test_a_pull_goes_on_with_another_relay(holding, dying, peer, token, until, how):
    (relay,), first, second = holding(1), dying(5), dying(3)
    addresses = [first.address, second.address, relay.address]
    where = addresses if how == "list" else lambda: addresses
    with RelayReader(where, token=token, same_host=False) as reader, reader.lease(1, timeout_s=10) as held:
        assert bytes(held.raw()["w"].data) == DATA
        assert reader.address == relay.address
        assert reader.transfers["chunks_received"] == COUNT
    assert (first.asked, second.asked) == (1, 1)
    # a relay counts a chunk once it is sent, which may be after it was received
    until(lambda: peer.transfers(relay)["chunks_sent"] == COUNT - 5 - 3, "the relay to have sent what was missing")


def test_a_pull_that_failed_goes_on_with_the_next_lease(holding, dying, peer, token, until):
    (relay,), first = holding(1), dying(10)
    addresses = [first.address]
    with RelayReader(lambda: addresses, token=token, same_host=False) as reader:
        with pytest.raises(RelayUnreachable), reader.lease(1, timeout_s=0):
            pass
        addresses[:] = [relay.address]
        with reader.lease(1, timeout_s=10) as held:
            assert bytes(held.raw()["w"].data) == DATA
    until(lambda: peer.transfers(relay)["chunks_sent"] == COUNT - 10, "the relay to have sent what was missing")


def test_a_waiting_reader_moves_on_when_its_relay_is_killed(holding, spawn, peer, token, until):
    doomed, (living,) = spawn(), holding(1)
    found = []

    def read():
        reader = RelayReader([doomed.address, living.address], token=token)
        with reader, reader.lease(1, timeout_s=20) as held:
            found.append(bytes(held.raw()["w"].data))

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.3)
    doomed.kill()
    began = time.monotonic()
    thread.join(20)
    assert found == [DATA]
    assert time.monotonic() - began < 5


def test_a_suspended_relay_costs_half_of_the_time(holding, spawn, token):
    doomed, (living,) = spawn(), holding(1)
    os.kill(doomed.pid, signal.SIGSTOP)
    try:
        reader = RelayReader([doomed.address, living.address], token=token)
        with reader, reader.lease(1, timeout_s=4) as held:
            assert bytes(held.raw()["w"].data) == DATA
    finally:
        os.kill(doomed.pid, signal.SIGCONT)


@pytest.mark.parametrize("same_host", [True, False])
def test_the_only_relay_is_suspended(spawn, token, same_host):
    """A typed error about when the deadline passes, not when the connection is given up for dead."""
    relay = spawn()
    reader = RelayReader(relay.address, token=token, same_host=same_host, stall_s=30)
    with reader:
        assert reader.latest() is None
        os.kill(relay.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(RelayTimeout, match="suspended"), reader.lease(1, timeout_s=0.5):
                pass
            assert time.monotonic() - began < 6
        finally:
            os.kill(relay.pid, signal.SIGCONT)


def test_no_relay_left_is_a_typed_error_in_time(token):
    began = time.monotonic()
    with RelayReader(lambda: ["127.0.0.1:1", "127.0.0.1:2"], token=token) as reader:
        with pytest.raises(RelayUnreachable, match="is it running"), reader.lease(1, timeout_s=1):
            pass
        assert time.monotonic() - began < 3
        with pytest.raises(RelayUnreachable):
            reader.latest()
    with RelayReader(list, token=token) as reader, pytest.raises(RelayUnreachable, match="at least one address"):
        reader.latest()


def test_a_relay_fetches_from_another(holding, serve, peer, token, until):
    (source,), relay = holding(1), serve()
    assert peer.ask(relay, {"op": "fetch", "version": 1, "source": source.address}) == {"fetched": [1, 9]}
    assert peer.ask(relay, {"op": "fetch", "version": None, "source": source.address}) == {"fetched": [1, 9]}
    with RelayReader(relay.address, token=token) as reader, reader.lease(1) as held:
        assert bytes(held.raw()["w"].data) == DATA
    until(lambda: peer.transfers(source)["chunks_sent"] == COUNT, "the source to have sent all")


def test_a_relay_fetches_what_is_still_arriving(serve, peer, token, until):
    source, middle, last = serve(), serve(), serve()
    manifest = peer.manifest(DATA, CHUNK)
    peer.ask(middle, {"op": "set_next", "addresses": [last.address]})
    channel = peer.dial(source)
    peer.offer(channel, manifest)
    peer.send(channel, manifest, DATA, 0, 1, 2)
    fetching = peer.dial(middle)
    fetching.send({"op": "fetch", "version": 1, "source": source.address})
    until(lambda: peer.status(last)["receiving"] == {"1": "3/16 chunks"}, "the chunks to stream through")
    peer.send(channel, manifest, DATA, *range(3, COUNT))
    assert channel.answer(10) == {"complete": True}
    assert fetching.answer(10) == {"fetched": [1, 1]}
    until(lambda: peer.status(last)["versions"] == [1], "the version at the end")
    channel.close()
    fetching.close()


def test_a_fetch_goes_on_from_another_source(holding, dying, serve, peer, until):
    (source,), first, relay = holding(1), dying(6), serve()
    with pytest.raises((RelayUnreachable, ConnectionError)):
        peer.ask(relay, {"op": "fetch", "version": 1, "source": first.address})
    assert peer.ask(relay, {"op": "fetch", "version": 1, "source": source.address}) == {"fetched": [1, 9]}
    until(lambda: peer.transfers(source)["chunks_sent"] == COUNT - 6, "the source to have sent the rest")
    assert peer.transfers(relay)["chunks_received"] == COUNT


def test_a_fetch_of_what_is_not_there(holding, serve, peer):
    (source,), relay = holding(1), serve()
    for version, error in [(2, VersionNotYet), (0, VersionRetired)]:
        with pytest.raises(error):
            peer.ask(relay, {"op": "fetch", "version": version, "source": source.address, "timeout_s": 0.5})
    with pytest.raises(ProtocolError, match="expected host:port"):
        peer.ask(relay, {"op": "fetch", "version": 1, "source": "nowhere"})
    assert peer.status(relay)["versions"] == []
