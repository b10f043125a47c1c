import os
import signal
import threading
import time

import pytest

from tailrace.paramserver import Publisher, RelayUnreachable
from tailrace.pipeline.roles.weights import RelayWeights
from tailrace.runtime.errors import RoleError
from tailrace.trainer import load_weights_file


@pytest.fixture
def weights(token, tmp_path):
    weights = RelayWeights(token=token, checkpoints=tmp_path)
    yield weights
    weights.close()


def publish(token, relay, version, value):
    torch = pytest.importorskip("torch")
    with Publisher(relay.address, token=token) as publisher:
        publisher.publish(version, [("w", torch.full((1000,), float(value)))])
        publisher.wait(version, 20)


def loaded(weights, version, timeout_s=20.0):
    with weights.load(version, timeout_s) as tensors:
        (pair,) = tensors
        assert pair[0] == "w"
        return set(pair[1].tolist())


def test_it_goes_on_with_the_next_source(weights, token, spawn):
    first, second = spawn(), spawn()
    for relay in (first, second):
        publish(token, relay, 1, 1)
    weights.use((first.address, second.address))
    assert loaded(weights, 1) == {1.0}
    first.kill()
    assert loaded(weights, 1) == {1.0}
    weights.use((second.address,))
    assert loaded(weights, 1) == {1.0}
    third = spawn()
    publish(token, third, 2, 2)
    weights.use((third.address, second.address))  # the best one, though the other still works
    assert loaded(weights, 2) == {2.0}


def test_a_load_that_is_under_way_goes_on_with_new_sources(weights, token, spawn):
    relay, fresh, found = spawn(), spawn(), []
    publish(token, relay, 1, 1)
    publish(token, fresh, 2, 2)
    weights.use((relay.address,))
    loading = threading.Thread(target=lambda: found.append(loaded(weights, 2)), daemon=True)
    loading.start()
    time.sleep(0.3)
    relay.kill()
    weights.use((fresh.address,))
    loading.join(20)
    assert found == [{2.0}]


def test_a_suspended_source_is_passed_over(weights, token, spawn):
    first, second = spawn(), spawn()
    for relay in (first, second):
        publish(token, relay, 1, 1)
    weights.use((first.address, second.address))
    os.kill(first.pid, signal.SIGSTOP)
    assert loaded(weights, 1) == {1.0}


def test_a_version_that_relays_dropped_comes_from_its_checkpoint(weights, token, spawn, model, tmp_path):
    (tmp_path / "3").symlink_to(model)
    expected = dict(load_weights_file(model))

    def from_checkpoint():
        with weights.load(3, 5.0) as tensors:
            assert all((tensor == expected[name]).all() for name, tensor in tensors)
            return len(tensors) == len(expected)

    assert from_checkpoint()  # no relay at all
    relay = spawn()
    weights.use((relay.address,))
    assert from_checkpoint()  # one that has nothing
    publish(token, relay, 4, 4)
    assert from_checkpoint()  # one that has a newer one
    publish(token, relay, 3, 3)
    assert loaded(weights, 3) == {3.0}  # one that has it
    relay.kill()
    assert from_checkpoint()  # one that is gone


def test_there_must_be_something(weights, spawn):
    with pytest.raises(RoleError, match="neither a relay nor a checkpoint of version 3"), weights.load(3, 1.0):
        pass
    relay = spawn()
    relay.kill()
    weights.use((relay.address,))
    with pytest.raises(RelayUnreachable), weights.load(3, 1.0):
        pass
