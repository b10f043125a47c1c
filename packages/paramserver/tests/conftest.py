import os
import time
import uuid

import pytest

from tailrace.paramserver import RelayProcess, RelayServer, new_token
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.manifest import Manifest, TensorSpec, checksum
from tailrace.paramserver.wire.authentication import connect


@pytest.fixture(scope="session")
def token():
    return new_token()


@pytest.fixture
def relay_name():
    return f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def serve(token):
    """Starts relays in threads of this process."""
    servers = []

    def start(name=None, **options):
        servers.append(RelayServer(name or f"test-{uuid.uuid4().hex}", token=token, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def spawn(token):
    """Starts relays in processes of their own."""
    relays = []

    def start(name=None, **options):
        relays.append(RelayProcess.start(name or f"test-{uuid.uuid4().hex}", token=token, **options))
        return relays[-1]

    yield start
    for relay in reversed(relays):
        if not relay.alive():  # killed by the test: a relay of its name removes what it left
            RelayServer(relay.name, token=token).close()
        relay.close()


@pytest.fixture
def until():
    """Waits for a condition, and fails when it does not come true."""

    def wait(condition, what, timeout_s=20.0):
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
            time.sleep(0.02)
        return found

    return wait


@pytest.fixture
def weights():
    """Weights that say which version they are, in every byte."""

    def make(version, tensors=4, nbytes=20_000):
        return [(f"layer.{i}.weight", bytes([version % 251]) * nbytes) for i in range(tensors)]

    return make


@pytest.fixture
def check():
    """Asserts that a lease holds exactly what `weights` made."""

    def same(lease, version):
        assert lease.version == version
        for name, raw in lease.raw().items():
            assert bytes(raw.data) == bytes([version % 251]) * len(raw.data), (version, name)

    return same


class Peer:
    """Speaks the protocol by hand."""

    def __init__(self, token):
        self._token = token

    def dial(self, relay, stall_s=10):
        address = relay if isinstance(relay, str) else relay.address
        channel, _ = connect(HOST, address, token=self._token, timeout_s=10, stall_s=stall_s)
        return channel

    def ask(self, relay, message, timeout_s=20):
        channel = self.dial(relay)
        try:
            return channel.request(message, timeout_s)
        finally:
            channel.close()

    def status(self, relay):
        return self.ask(relay, {"op": "status"})

    def transfers(self, relay):
        return self.status(relay)["transfers"]

    def manifest(self, data, chunk_bytes, version=1, stamp=1):
        spec = TensorSpec("w", "uint8", (len(data),), 0, len(data))
        return Manifest(version, stamp, chunk_bytes, len(data), (spec,))

    def offer(self, channel, manifest, **fields):
        return channel.request({"op": "offer", "manifest": manifest.to_wire(), **fields}, 10)

    def send(self, channel, manifest, data, *indices):
        for index in indices:
            offset, nbytes = manifest.chunk(index)
            value = checksum(data[offset : offset + nbytes])
            channel.send_chunk(index, value, -1, memoryview(data), offset, nbytes)


@pytest.fixture
def peer(token):
    return Peer(token)
