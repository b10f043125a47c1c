"""The trainer is killed in the middle of a push. Another one goes on; what was half there is never served."""

import os
import random
import subprocess
import sys

import pytest

from tailrace.paramserver import Publisher, RelayReader, VersionRetired, relay_status, set_chain

CHUNK = 2**14
SIZE = 24 * 2**20

TRAINER = """
import os, random, sys, time
from tailrace.paramserver import Publisher
data = random.Random(int(sys.argv[2])).randbytes(int(sys.argv[3]))
publisher = Publisher(sys.argv[1], token=os.environ["T"], chunk_bytes=int(sys.argv[4]), transports=())
print("ready", flush=True)
sys.stdin.readline()
publisher.publish(2, [("w", data)], stamp=int(sys.argv[5]))
time.sleep(60)
"""


def killed_in_mid_push(relay, token, peer, stamp, seed=2):
    """Publishes version 2 and dies when some of it has arrived."""
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, relay.address, *map(str, (seed, SIZE, CHUNK, stamp))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "T": token},
    )
    with trainer:
        trainer.stdout.readline()
        channel = peer.dial(relay)
        trainer.stdin.write(b"\n")
        trainer.stdin.flush()
        while channel.request({"op": "status"}, 10)["receiving"].get("2", "0/").startswith("0/"):
            assert trainer.poll() is None
        trainer.kill()
        trainer.wait()
        channel.close()


@pytest.fixture
def relays(serve, token):
    relays = [serve(), serve()]
    set_chain([relay.address for relay in relays], token=token)
    with Publisher(relays[0].address, token=token) as publisher:
        publisher.publish(1, [("w", b"one")], stamp=1)
        publisher.wait(1, 20)
    return relays


def everywhere(relays, token, version, data):
    for relay in relays:
        for near in (True, False):
            reader = RelayReader(relay.address, token=token, same_host=near)
            with reader, reader.lease(version, timeout_s=20) as held:
                assert bytes(held.raw()["w"].data) == data


def test_the_next_trainer_sends_the_rest(relays, peer, token, until):
    killed_in_mid_push(relays[0], token, peer, stamp=2)
    until(lambda: "2" in peer.status(relays[0])["partial"], "the relay to notice")
    there = int(peer.status(relays[0])["partial"]["2"].split("/")[0])
    assert all(relay_status(relay.address, token=token).versions == (1,) for relay in relays)
    with Publisher(relays[0].address, token=token, chunk_bytes=CHUNK, transports=()) as publisher:
        publisher.publish(2, [("w", random.Random(2).randbytes(SIZE))], stamp=2)
        publisher.wait(2, 60)
        assert publisher.transfers["chunks_sent"] == SIZE // CHUNK - there < SIZE // CHUNK
    everywhere(relays, token, 2, random.Random(2).randbytes(SIZE))
    assert peer.transfers(relays[1])["chunks_received"] == SIZE // CHUNK + 1  # and of version 1


def test_the_next_trainer_has_other_weights(relays, peer, token, until):
    """It came back from a checkpoint and made another version 2: not a byte of the first one is used."""
    killed_in_mid_push(relays[0], token, peer, stamp=2)
    other = random.Random(3).randbytes(SIZE)
    with Publisher(relays[0].address, token=token, chunk_bytes=CHUNK, transports=()) as publisher:
        publisher.publish(2, [("w", other)])
        publisher.wait(2, 60)
        assert publisher.transfers["chunks_sent"] == SIZE // CHUNK
    everywhere(relays, token, 2, other)


def test_an_old_push_does_not_come_back(relays, peer, token, until):
    """A stamp from before is refused once a newer publication is visible."""
    killed_in_mid_push(relays[0], token, peer, stamp=2)
    with Publisher(relays[0].address, token=token) as publisher:
        publisher.publish(3, [("w", b"three")])
        publisher.wait(3, 60)
        publisher.publish(4, [("w", b"four")])
        publisher.wait(4, 60)
    with Publisher(relays[0].address, token=token) as late:
        late.publish(2, [("w", b"two")], stamp=2)
        with pytest.raises(VersionRetired):
            late.wait(2, 20)
    assert relay_status(relays[0].address, token=token).versions == (3, 4)


def test_several_roots_publish_one_version(serve, peer, token, until):
    """Each data-parallel root has a tree; the trees are joined by a fetch, and nothing comes twice."""
    roots = [serve(transports=()), serve(transports=())]
    leaf = serve()
    set_chain([roots[0].address, leaf.address], token=token)
    data = random.Random(4).randbytes(100_000)
    publishers = [Publisher(root.address, token=token, chunk_bytes=CHUNK, transports=()) for root in roots]
    for publisher in publishers:
        publisher.publish(1, [("w", data)], stamp=77)
    for publisher in publishers:
        publisher.wait(1, 20)
        publisher.close()
    until(lambda: relay_status(leaf.address, token=token).versions == (1,), "the version")
    assert peer.ask(leaf, {"op": "fetch", "version": 1, "source": roots[1].address}) == {"fetched": [1, 77]}
    assert peer.transfers(leaf)["chunks_received"] == -(-len(data) // CHUNK)
    assert peer.transfers(roots[1])["chunks_sent"] == 0  # the leaf had it
    everywhere([*roots, leaf], token, 1, data)
