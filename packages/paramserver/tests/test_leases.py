import contextlib
import os
import signal
import subprocess
import sys

import pytest

from tailrace.paramserver import (
    LeaseExpired,
    Publisher,
    RelayReader,
    VersionNotYet,
    VersionRetired,
    relay_status,
)
from tailrace.paramserver.clients.needs import Needs
from tailrace.paramserver.errors import LayoutMismatch

READER = """
import os, sys, time
from tailrace.paramserver import RelayReader
address, version = sys.argv[1], int(sys.argv[2])
with RelayReader(address, token=os.environ["T"]).lease(version, hold_s=600):
    child = os.fork() if sys.argv[3] == "fork" else 0
    if sys.argv[3] != "fork" or child:
        print("leased", child, flush=True)
    time.sleep(120)
"""

HAMMER = """
import os, sys
from tailrace.paramserver import RelayReader, VersionRetired
reader, leases = RelayReader(sys.argv[1], token=os.environ["T"], same_host=sys.argv[2] == "near"), 0
last = int(sys.argv[3])
newest = -1
while newest < last:
    newest = reader.latest() if reader.latest() is not None else -1
    if newest < 0:
        continue
    try:
        with reader.lease(newest, verify=False) as weights:
            for raw in weights.raw().values():
                assert bytes(raw.data) == bytes([newest % 251]) * len(raw.data), newest
            leases += 1
    except VersionRetired:
        pass
print(leases)
"""


def python(code, *arguments, token):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "T": token},
    )


def test_a_lease_outlives_five_more_versions(spawn, token, weights, check, until):
    relay = spawn()
    with (
        Publisher(relay.address, token=token, chunk_bytes=4096) as publisher,
        RelayReader(relay.address, token=token) as reader,
    ):
        publisher.publish(0, weights(0))
        with reader.lease(0) as held:
            for version in range(1, 6):
                publisher.publish(version, weights(version))
                if version == 1:
                    publisher.wait(1, 20)
                check(held, 0)
            # Version 0's slot is needed, so 0 takes no new readers, but the newest complete version does.
            until(lambda: reader.versions() == [1], "the writer to want version 0's slot")
            with reader.lease(1) as newest:
                check(newest, 1)
            check(held, 0)
            held.verify()
        publisher.wait(5, 20)
        with reader.lease(5) as newest:
            check(newest, 5)
        with pytest.raises(VersionRetired, match="version 0 is retired"), reader.lease(0):
            pass


@pytest.mark.parametrize("side", ["near", "far"])
def test_readers_under_fire_never_see_a_mixture(spawn, token, weights, side):
    relay, last = spawn(), 60
    readers = [python(HAMMER, relay.address, side, last, token=token) for _ in range(2)]
    with Publisher(relay.address, token=token, chunk_bytes=4096) as publisher:
        for version in range(last + 1):
            publisher.publish(version, weights(version))
            publisher.wait(version, 20)
        for reader in readers:
            output, _ = reader.communicate(timeout=60)
            assert reader.returncode == 0
            assert int(output) > 0


@pytest.mark.parametrize("mode", ["alone", "fork"])
def test_a_killed_reader_does_not_block_publishing(spawn, token, weights, check, mode):
    """With a forked child the connection survives the reader: only its pid tells."""
    relay = spawn()
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        publisher.publish(0, weights(0))
        publisher.wait(0, 20)
        process = python(READER, relay.address, 0, mode, token=token)
        _, child = process.stdout.readline().split()
        process.kill()
        process.wait()
        try:
            for version in (1, 2, 3):
                publisher.publish(version, weights(version))
                publisher.wait(version, 20)
            with reader.lease(3) as newest:
                check(newest, 3)
        finally:
            process.stdout.close()
            if int(child):
                os.kill(int(child), signal.SIGKILL)


def test_an_expired_lease_gives_way_and_says_so(serve, token, weights, until):
    relay = serve()
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        publisher.publish(0, weights(0))
        lease = reader.lease(0, hold_s=0.2)
        held = lease.__enter__()
        for version in (1, 2):
            publisher.publish(version, weights(version))
            publisher.wait(version, 20)
        with pytest.raises(LeaseExpired, match="renew in time"):
            held.raw()
        with pytest.raises(LeaseExpired, match="may be a mixture"):
            lease.__exit__(None, None, None)


def test_an_expired_lease_that_nobody_took_is_harmless(serve, token, weights, check, until):
    relay = serve()
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        publisher.publish(0, weights(0))
        publisher.wait(0, 20)
        with reader.lease(0, hold_s=0.3) as held:
            held.renew(300)
            check(held, 0)
        with pytest.raises(LeaseExpired):
            held.raw()


def test_leases_end_with_the_context_even_on_errors(serve, token, weights):
    relay = serve()
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        publisher.publish(0, weights(0))
        with contextlib.suppress(ZeroDivisionError), reader.lease(0):
            assert relay_status(relay.address, token=token).leases == {"0": f"pid {os.getpid()}"}
            raise ZeroDivisionError
        assert relay_status(relay.address, token=token).leases == {}


def test_a_version_that_does_not_fit_the_reader_is_given_back_at_once(serve, token, weights):
    """Its slot would be held for a reader that has no lease, and a publisher would wait for it."""
    relay = serve()

    def of_another_model(tensors):
        raise LayoutMismatch(f"found {len(tensors)} tensors, expected others")

    with Publisher(relay.address, token=token) as publisher:
        publisher.publish(0, weights(0))
        publisher.wait(0, 20)
        with RelayReader(relay.address, token=token, needs=Needs(of_another_model)) as reader:
            with pytest.raises(LayoutMismatch), reader.lease(0):
                pass
            assert relay_status(relay.address, token=token).leases == {}


def test_numbers_of_numpy_are_numbers(serve, token, weights, check):
    numpy = pytest.importorskip("numpy")
    version, relay = numpy.int64(3), serve()
    with (
        Publisher(relay.address, token=token) as publisher,
        RelayReader(relay.address, token=token) as near,
        RelayReader(relay.address, token=token, same_host=False) as far,
    ):
        publisher.publish(version, weights(3), sealed=True)
        publisher.reveal(version)
        for reader in (near, far):
            with reader.lease(version, timeout_s=20, hold_s=numpy.float32(9)) as leased:
                check(leased, 3)
        with pytest.raises(TypeError, match="expected a number"), near.lease(object()):
            pass


def test_what_is_not_there(serve, token, weights):
    relay = serve()
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        assert reader.latest() is None
        with pytest.raises(VersionNotYet, match="version 0 did not become visible"), reader.lease(0, timeout_s=0.1):
            pass
        publisher.publish(4, weights(4))
        publisher.wait(4, 20)
        assert (reader.latest(), reader.versions()) == (4, [4])
        with pytest.raises(VersionNotYet), reader.lease(5, timeout_s=0):
            pass
        with pytest.raises(VersionRetired), reader.lease(3):
            pass


def test_a_lost_relay_does_not_take_the_weights_from_a_reader(spawn, token, weights, check):
    relay = spawn()
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        publisher.publish(0, weights(0))
        with reader.lease(0) as held:
            relay.kill()
            check(held, 0)
            held.verify()


def test_a_rollback_republishes_numbers_that_were_used(serve, token, weights):
    relay = serve()
    with RelayReader(relay.address, token=token) as reader:
        with Publisher(relay.address, token=token) as before:
            for version in (8, 9):
                before.publish(version, weights(version))
                before.wait(version, 20)
        with Publisher(relay.address, token=token) as after:  # the trainer came back from checkpoint 7
            after.publish(8, [("w", b"another 8")])
            after.wait(8, 20)
            assert reader.versions() == [8]  # 9 was made from a version 8 that never was
            with reader.lease(8) as held:
                assert bytes(held.raw()["w"].data) == b"another 8"


def test_a_pulled_version_outlives_the_next_pull_while_it_is_referred_to(serve, token):
    torch = pytest.importorskip("torch")
    relay = serve()
    with (
        Publisher(relay.address, token=token) as publisher,
        RelayReader(relay.address, token=token, same_host=False) as reader,
    ):
        kept = []
        for version in range(4):
            publisher.publish(version, [("w", torch.full((1000,), float(version)))])
            with reader.lease(version) as weights:
                kept.append(weights["w"] if version % 2 else weights["w"].clone())
        assert [set(w.tolist()) for w in kept] == [{0.0}, {1.0}, {2.0}, {3.0}]


def test_a_lease_that_no_relay_gives_is_refused_at_once(serve, token, weights):
    """All relays were asked again and again, until the deadline."""
    first, second = serve(), serve()
    with Publisher(first.address, token=token) as publisher:
        publisher.publish(1, weights(1))
        publisher.wait(1, 20)
    with RelayReader([first.address, second.address], token=token) as reader:
        asked = reader._connection.request
        reader._connection.request = lambda message, *rest: pytest.fail(str(message)) or asked(message, *rest)
        with (
            pytest.raises(ValueError, match="found hold_s=7200, expected seconds from 0 to 3600"),
            reader.lease(1, hold_s=7200),
        ):
            pass
