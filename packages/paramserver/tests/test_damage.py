"""Bytes that change on the wire never become visible."""

import socket
import threading

import pytest

from tailrace.paramserver import ChunkDamaged, Publisher, RelayReader, relay_status, set_chain
from tailrace.paramserver.wire.channel import parse_address

PAYLOAD = b"\x07" * 1000  # only weights look like this: version 7 of the fixture


class FlippingProxy:
    """Passes bytes on, and flips one bit inside of weights on the first `damages` connections' streams or chunks.

    Args:
        damages: how many bits to flip at all.
        towards_client: flip in what the relay sends.
    """

    def __init__(self, damages, towards_client=False):
        self.target, self.left, self._towards_client = None, damages, towards_client
        self.flipped = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(parse_address(self.target))
            for source, sink, flip in (
                (client, server, not self._towards_client),
                (server, client, self._towards_client),
            ):
                threading.Thread(target=self._pump, args=(source, sink, flip), daemon=True).start()

    def _pump(self, source, sink, flip):
        try:
            while data := bytearray(source.recv(65536)):
                where = data.find(PAYLOAD)
                if flip and self.left > 0 and where >= 0:
                    data[where + 500] ^= 0x10
                    self.left -= 1
                    self.flipped += 1
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()
            sink.close()

    def close(self):
        self._listener.close()


@pytest.fixture
def proxy(serve):
    proxies = []

    def start(**options):
        """A proxy, and the relay behind it."""
        proxies.append(FlippingProxy(**options))
        relay = serve(known_as=[proxies[-1].address])
        proxies[-1].target = relay.address
        return proxies[-1], relay

    yield start
    for one in proxies:
        one.close()


def test_a_damaged_push_is_never_visible(proxy, token, weights):
    wire, relay = proxy(damages=1000)
    with (
        Publisher(wire.address, token=token, chunk_bytes=4096) as publisher,
        RelayReader(relay.address, token=token) as reader,
    ):
        publisher.publish(7, weights(7))
        with pytest.raises(ChunkDamaged, match="damaged on the way"):
            publisher.wait(7, 20)
        assert wire.flipped > 0
        assert reader.latest() is None
        wire.left = 0
        publisher.retarget(wire.address)  # the wire is mended: the same version again
        publisher.wait(7, 20)
        assert reader.latest() == 7


def test_a_push_that_is_damaged_once_is_repeated(proxy, token, weights, check):
    wire, relay = proxy(damages=1)
    with (
        Publisher(wire.address, token=token, chunk_bytes=4096) as publisher,
        RelayReader(relay.address, token=token) as reader,
    ):
        publisher.publish(7, weights(7))
        publisher.wait(7, 20)
        assert wire.flipped == 1
        assert publisher.transfers["chunks_resent"] == 1  # only what was damaged
        with reader.lease(7) as held:
            check(held, 7)


def test_damage_between_relays_stays_between_them(serve, proxy, peer, token, weights, check, until):
    wire, second = proxy(damages=2)
    first, third = serve(), serve()
    set_chain([first.address, wire.address], token=token)
    set_chain([second.address, third.address], token=token)
    with Publisher(first.address, token=token, chunk_bytes=4096) as publisher:
        publisher.publish(7, weights(7))
        publisher.wait(7, 20)
        for relay in (second, third):
            until(lambda relay=relay: relay_status(relay.address, token=token).versions == (7,), "the version")
            with RelayReader(relay.address, token=token) as reader, reader.lease(7) as held:
                check(held, 7)
    assert wire.flipped == 2
    assert (peer.transfers(second)["chunks_damaged"], peer.transfers(first)["chunks_resent"]) == (2, 2)
    assert peer.transfers(third)["chunks_damaged"] == peer.transfers(second)["chunks_resent"] == 0


@pytest.mark.parametrize(("damages", "arrives"), [(1, True), (1000, False)])
def test_a_damaged_pull(proxy, token, weights, check, damages, arrives):
    wire, relay = proxy(damages=damages, towards_client=True)
    with (
        Publisher(relay.address, token=token, chunk_bytes=4096) as publisher,
        RelayReader(wire.address, token=token, same_host=False) as reader,
    ):
        publisher.publish(7, weights(7))
        publisher.wait(7, 20)
        if arrives:
            with reader.lease(7) as held:
                check(held, 7)
        else:
            with pytest.raises(ChunkDamaged), reader.lease(7):
                pass
        assert wire.flipped > 0


def test_damage_in_shared_memory_is_found_by_the_reader(serve, token, weights):
    relay = serve()
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        publisher.publish(7, weights(7))
        publisher.wait(7, 20)
        relay._table.complete_slots()[0].memory.view[12345] ^= 1
        with pytest.raises(ChunkDamaged, match="in memory"), reader.lease(7):
            pass
        with reader.lease(7, verify=False) as held:
            assert len(held) == 4
