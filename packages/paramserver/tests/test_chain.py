import os
import signal

import pytest

from tailrace.paramserver import Publisher, RelayReader, RelayUnreachable, fetch, relay_status, set_chain
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.manifest import Manifest, TensorSpec, checksum
from tailrace.paramserver.wire.authentication import connect

CHUNK = 4096


def has(relays, token, version, check, until):
    """Every relay shows the version, whole and with matching checksums, near and far."""
    for relay in relays:
        with (
            RelayReader(relay.address, token=token) as near,
            RelayReader(relay.address, token=token, same_host=False) as far,
        ):
            until(lambda near=near: near.latest() == version, f"version {version} on {relay.name}")
            for reader in (near, far):
                with reader.lease(version) as weights:
                    weights.verify()
                    check(weights, version)


@pytest.mark.parametrize("length", [2, 3])
def test_every_relay_of_a_chain_gets_every_version(spawn, token, weights, check, until, length):
    relays = [spawn() for _ in range(length)]
    set_chain([relay.address for relay in relays], token=token)
    with Publisher(relays[0].address, token=token, chunk_bytes=CHUNK) as publisher:
        for version in range(5):
            publisher.publish(version, weights(version))
            publisher.wait(version, 20)
            has(relays, token, version, check, until)
    assert relay_status(relays[-1].address, token=token).versions == (3, 4)


def test_chunks_go_on_before_the_version_is_complete(serve, token, until):
    """Pipelined, not store and forward: the last relay gets chunks that the master received before the rest was sent."""
    relays = [serve() for _ in range(3)]
    set_chain([relay.address for relay in relays], token=token)
    data = os.urandom(4 * CHUNK)
    manifest = Manifest(1, 1, CHUNK, len(data), (TensorSpec("w", "uint8", (len(data),), 0, len(data)),))
    channel, _ = connect(HOST, relays[0].address, token=token, timeout_s=10, stall_s=10)
    channel.request({"op": "offer", "manifest": manifest.to_wire()}, 10)
    for index in range(4):
        offset, nbytes = manifest.chunk(index)
        channel.send_chunk(index, checksum(data[offset : offset + nbytes]), -1, memoryview(data), offset, nbytes)
        if index == 3:
            break
        progress = {"1": f"{index + 1}/4 chunks"}
        until(lambda p=progress: relay_status(relays[2].address, token=token).receiving == p, f"{progress} at the end")
        assert all(relay_status(relay.address, token=token).versions == () for relay in relays)
    channel.answer(10)
    channel.close()
    for relay in relays:
        until(lambda relay=relay: relay_status(relay.address, token=token).versions == (1,), "the version everywhere")


def test_a_killed_middle_relay_is_bridged(spawn, token, weights, check, until):
    first, middle, last = relays = [spawn() for _ in range(3)]
    set_chain([relay.address for relay in relays], token=token)
    with Publisher(first.address, token=token, chunk_bytes=CHUNK) as publisher:
        publisher.publish(0, weights(0))
        publisher.wait(0, 20)
        has(relays, token, 0, check, until)
        middle.kill()
        publisher.publish(1, weights(1))
        publisher.wait(1, 20)  # the master is none the worse
        until(lambda: relay_status(first.address, token=token).forward_error, "an error that names the dead relay")
        assert middle.address in relay_status(first.address, token=token).forward_error
        set_chain([first.address, last.address], token=token)
        has([first, last], token, 1, check, until)
        assert relay_status(first.address, token=token).forward_error is None
        newcomer = spawn(middle.name)
        assert newcomer.cleaned, "the killed relay left its segments"
        set_chain([first.address, newcomer.address, last.address], token=token)
        has([newcomer], token, 1, check, until)
        publisher.publish(2, weights(2))
        has([first, newcomer, last], token, 2, check, until)


def test_a_killed_master_is_replaced(spawn, token, weights, check, until):
    master, second, third = relays = [spawn() for _ in range(3)]
    set_chain([relay.address for relay in relays], token=token)
    outcomes = []
    with Publisher(
        master.address,
        token=token,
        chunk_bytes=CHUNK,
        on_published=lambda version, error: outcomes.append((version, error)),
    ) as publisher:
        publisher.publish(0, weights(0))
        publisher.wait(0, 20)
        has(relays, token, 0, check, until)
        master.kill()
        publisher.publish(1, weights(1))
        with pytest.raises(RelayUnreachable):
            publisher.wait(1, 20)
        set_chain([second.address, third.address], token=token)
        publisher.retarget(second.address)
        publisher.wait(1, 20)  # it was still staged
        has([second, third], token, 1, check, until)
        publisher.publish(2, weights(2))
        publisher.wait(2, 20)
        has([second, third], token, 2, check, until)
        until(lambda: len(outcomes) == 4, "all callbacks")
    assert [version for version, _ in outcomes] == [0, 1, 1, 2]
    assert [type(error) for _, error in outcomes] == [type(None), RelayUnreachable, type(None), type(None)]


def test_a_version_that_died_with_its_master_is_pushed_again(spawn, token, weights, check, until):
    """It was visible on the master, and nowhere else."""
    master, second = spawn(), spawn()
    with Publisher(master.address, token=token) as publisher:
        publisher.publish(0, weights(0))
        publisher.wait(0, 20)
        master.kill()
        publisher.retarget(second.address)
        publisher.wait(0, 20)
        has([second], token, 0, check, until)


def test_a_suspended_relay_holds_nobody_up(spawn, token, weights, check, until):
    first, second = spawn(stall_s=0.5, slot_timeout_s=2), spawn()
    set_chain([first.address, second.address], token=token)
    with Publisher(first.address, token=token, chunk_bytes=CHUNK) as publisher:
        publisher.publish(0, weights(0))
        has([first, second], token, 0, check, until)
        os.kill(second.pid, signal.SIGSTOP)
        try:
            for version in (1, 2, 3):
                publisher.publish(version, weights(version, nbytes=2_000_000))
                publisher.wait(version, 20)
            has([first], token, 3, check, until)
        finally:
            os.kill(second.pid, signal.SIGCONT)
        has([first, second], token, 3, check, until)  # it tries again by itself


def test_a_newcomer_gets_all_that_is_held(serve, token, weights, until):
    first, second = serve(), serve()
    with Publisher(first.address, token=token) as publisher:
        for version in range(3):
            publisher.publish(version, weights(version))
            publisher.wait(version, 20)
    set_chain([first.address, second.address], token=token)
    until(lambda: relay_status(second.address, token=token).versions == (1, 2), "both versions")


def test_one_address_is_no_list_of_them(serve, token):
    relay = serve()
    with pytest.raises(TypeError, match=rf"addresses: found the text '{relay.address}', expected a list of addresses"):
        set_chain(relay.address, token=token)
    with pytest.raises(TypeError, match=rf"sources: found the text '{relay.address}', expected a list of addresses"):
        fetch(relay.address, 1, relay.address, token=token, timeout_s=1)


def test_a_chain_that_is_no_chain(serve, token):
    relay = serve()
    with pytest.raises(ValueError, match="twice"):
        set_chain([relay.address, relay.address], token=token)
    with pytest.raises(RelayUnreachable, match="is it running"):
        set_chain([relay.address, "127.0.0.1:1"], token=token)
    assert relay_status(relay.address, token=token).next is None
