"""A worker takes its own part of a version that a relay holds whole."""

import numpy as np
import pytest

from tailrace.paramserver import Needs, Publisher, RawTensor, RelayReader, RelayServer
from tailrace.paramserver.layout import Layout, Planner, copy, from_vllm, message, qwen_tensors
from tailrace.paramserver.manifest import byte_size

from .random_layouts import empty_memory
from .small_models import TIED


def test_each_worker_gets_its_part(relay_name, token):
    tensors = qwen_tensors(TIED)
    weights = {
        tensor.name: bytes((7 * number + index) % 251 for index in range(byte_size(tensor.dtype, tensor.shape)))
        for number, tensor in enumerate(tensors)
    }
    workers = from_vllm(tensors, TIED, tp=4)
    planner, held = Planner(), Layout.replicated(tensors, ["relay"])
    with RelayServer(relay_name, token=token) as relay, Publisher(relay.address, token=token) as publisher:
        publisher.publish(3, [(t.name, RawTensor(t.dtype, t.shape, weights[t.name])) for t in tensors])
        with RelayReader(relay.address, token=token) as reader, reader.lease(3, timeout_s=30) as lease:
            whole = {name: tensor.data for name, tensor in lease.raw().items()}
            local = {rank: empty_memory(shard) for rank, shard in workers.shards.items()}
            for rank, memory in local.items():
                copy(message(planner.plan(held, workers), "relay", rank), whole, memory)
    assert planner.made == 1
    down = weights["model.layers.1.mlp.down_proj.weight"]  # 16 rows of 24 elements of 2 bytes, cut into columns
    for part in range(4):
        expected = b"".join(down[row * 48 + part * 12 : row * 48 + part * 12 + 12] for row in range(16))
        assert local[f"rank{part}"]["model.layers.1.mlp.down_proj.weight"] == expected


@pytest.mark.parametrize("same_host", [True, False])
def test_tensors_without_elements_are_there_too(relay_name, token, same_host):
    """A reader with needs could not read a version that has one, such as an index that a quantised layer leaves empty."""
    weights = {"a": np.arange(5.0), "none": np.zeros((0, 3)), "b": np.arange(100.0), "last": np.zeros((4, 0), np.int8)}
    with RelayServer(relay_name, token=token) as relay, Publisher(relay.address, token=token) as publisher:
        publisher.publish(3, weights)
        with (
            RelayReader(relay.address, token=token, same_host=same_host, needs=Needs()) as reader,
            reader.lease(3, timeout_s=30) as lease,
        ):
            assert list(lease) == list(weights)
            assert [tuple(lease[name].shape) for name in weights] == [(5,), (0, 3), (100,), (4, 0)]
            assert [one.name for one in lease.slices()] == list(weights)
            copies = {name: np.full_like(value, 7) for name, value in weights.items()}
            lease.copy_into(copies)
    assert all(np.array_equal(copies[name], value) for name, value in weights.items())
