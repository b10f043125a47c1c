import os
import time
import uuid

import pytest

from tailrace.paramserver import RelayProcess, RelayServer, new_token


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
