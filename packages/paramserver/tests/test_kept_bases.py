"""What the next relay acknowledged stays as the base of its next delta, and never anything that it has not."""

import contextlib
import itertools
import random
import socket
import threading
import uuid

import pytest

from tailrace.paramserver import Publisher, RelayReader
from tailrace.paramserver.machine.segments import SegmentOwner
from tailrace.paramserver.manifest import Manifest, TensorSpec
from tailrace.paramserver.relays.slots import SlotTable
from tailrace.paramserver.wire.channel import parse_address

pytest.importorskip("numpy")
NBYTES, CHUNK = 200_000, 20_000
DELTAS = {"codecs": ("delta",), "always_encode": True, "transports": ()}


@pytest.fixture
def table():
    owner = SegmentOwner(f"bases-{uuid.uuid4().hex}")
    yield SlotTable(owner, 3)
    owner.close()


def arrives(table, version, nbytes=8):
    manifest = Manifest(version, version, nbytes, nbytes, (TensorSpec("w", "uint8", (nbytes,), 0, nbytes),))
    slot = table.reserve(manifest, timeout_s=0)
    table.arrived(slot.publication, 0, 0)
    table.complete(slot)
    return manifest


def held(table):
    return [version for version, _ in table.versions()]


def test_versions_that_did_not_reach_it_make_room_for_each_other(table):
    arrives(table, 1)
    table.keep_base((1, 1), "far")
    for version in range(2, 9):
        manifest = arrives(table, version)
        assert (1, 1) in table.bases(manifest)
    assert held(table) == [1, 7, 8]
    table.keep_base((8, 8), "far")
    arrives(table, 9)
    arrives(table, 10)
    assert held(table) == [8, 9, 10]


def test_it_gives_way_where_no_other_version_can(table):
    arrives(table, 1)
    table.keep_base((1, 1), "far")
    arrives(table, 2)
    slot, lease = table.lease(2, wait_s=0, hold_s=60, holder="a reader", process=None)
    arrives(table, 3)
    arrives(table, 4)  # 2 is read, 3 was the newest: 1 goes, without a wait
    assert held(table) == [2, 3, 4]
    assert table.status()["leases"] == {"2": "a reader"}
    table.release(slot, lease)
    table.keep_base((1, 1), "far")  # it is gone: nothing happens
    arrives(table, 5)
    assert held(table) == [3, 4, 5]


def test_the_bases_of_many_relays_are_bounded(table):
    arrives(table, 1)
    arrives(table, 2)
    for address in range(100):
        table.keep_base((1, 1), f"gone {address}")
        table.keep_base((2, 2), f"gone {address}")
    assert sum(len(slot.leases.held) for slot in table.slots) <= 17
    arrives(table, 3)
    arrives(table, 4)
    assert held(table)[-1] == 4


class Link:
    """A TCP link to a relay that a test can spoil. `mode`: passes; acks (they are lost, and the connection with them); cut."""

    def __init__(self):
        self.target, self.mode, self.carried = "", "passes", 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(parse_address(self.target))
            except OSError:
                near.close()
                continue
            self._open += [near, far]
            for source, into, back in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pump, args=(source, into, back), daemon=True).start()

    def _pump(self, source, into, back):
        while True:
            try:
                data = source.recv(65536)
                lost = self.mode == "cut" or (self.mode == "acks" and back and b'"complete"' in data)
                if not data or lost:
                    break
                self.carried += 0 if back else len(data)
                into.sendall(data)
            except OSError:
                break
        for end in (source, into):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listener.close()
        for end in self._open:
            end.close()


@pytest.mark.parametrize("seed", range(4))
def test_exact_whatever_acknowledgements_are_lost_and_receivers_restart(serve, token, until, peer, seed):
    generator = random.Random(seed)
    link = Link()
    home, far = serve(slots=3, **DELTAS), serve(**DELTAS, known_as=[link.address])
    link.target = far.address
    peer.ask(home, {"op": "set_next", "addresses": [link.address]})
    weights = {0: bytearray(generator.randbytes(NBYTES))}
    versions = itertools.count(1)
    try:
        with Publisher(home.address, token=token, chunk_bytes=CHUNK) as publisher:

            def publish(step):
                new = bytearray(weights[step - 1])
                for _ in range(300):
                    new[generator.randrange(NBYTES)] ^= 1 << generator.randrange(8)
                weights[step] = new
                publisher.publish(step, [("w", bytes(new))])
                publisher.wait(step, 20)

            for _ in range(8):
                link.mode = generator.choice(["passes", "acks", "cut"])
                for _ in range(generator.randrange(1, 4)):
                    publish(next(versions))
                if generator.random() < 0.3:
                    far.close()
                    far = serve(**DELTAS, known_as=[link.address])  # another one, with nothing
                    link.target = far.address
            link.mode = "passes"
            last = next(versions)
            publish(last)
            peer.ask(home, {"op": "set_next", "addresses": [link.address]})  # tried again at once
            until(lambda: peer.status(far)["versions"][-1:] == [last], f"version {last} to arrive (seed {seed})")
            with RelayReader(far.address, token=token) as reader:
                for version in peer.status(far)["versions"]:
                    with reader.lease(version, timeout_s=10) as lease:
                        assert bytes(lease.raw()["w"].data) == weights[version], f"version {version}, seed {seed}"
            before = link.carried
            publish(next(versions))
            until(lambda: peer.status(far)["versions"][-1] > last, f"the next version to arrive (seed {seed})")
            assert link.carried - before < NBYTES / 10, f"a whole copy crossed, not a delta (seed {seed})"
    finally:
        link.close()


def test_a_cut_costs_a_delta_and_not_a_whole_copy(serve, token, until, peer):
    link = Link()
    home, far = serve(slots=3, **DELTAS), serve(**DELTAS, known_as=[link.address])
    link.target = far.address
    peer.ask(home, {"op": "set_next", "addresses": [link.address]})
    data = bytearray(random.Random(0).randbytes(NBYTES))
    with Publisher(home.address, token=token, chunk_bytes=CHUNK) as publisher:

        def publish(version):
            data[100 * version] ^= 1
            publisher.publish(version, [("w", bytes(data))])
            publisher.wait(version, 20)

        publish(1)
        until(lambda: peer.status(far)["versions"] == [1], "version 1 to arrive")
        publish(2)  # it is sent once `home` has heard that the first has arrived, and without that there is no base yet
        until(lambda: peer.status(far)["versions"][-1] == 2, "version 2 to arrive")
        link.mode = "cut"
        peer.ask(home, {"op": "set_next", "addresses": []})  # as a group does that sees it dead
        for version in range(3, 12):
            publish(version)
        link.mode, before = "passes", link.carried
        peer.ask(home, {"op": "set_next", "addresses": [link.address]})
        until(lambda: peer.status(far)["versions"][-1] == 11, "version 11 to arrive")
        assert link.carried - before < NBYTES / 10
        with RelayReader(far.address, token=token) as reader, reader.lease(11, timeout_s=10) as lease:
            assert bytes(lease.raw()["w"].data) == data
    link.close()
