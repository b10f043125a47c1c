"""Where a trainer takes weights from that are newer than its checkpoint's."""

import pytest
import torch

from tailrace.contracts import HeldWeights
from tailrace.paramserver import Publisher, RelayProcess
from tailrace.pipeline.roles.transfer import WeightTransfer, taken
from tailrace.runtime.errors import CheckpointUnusableError


def test_they_come_whole_from_the_first_that_has_them(token):
    published = {"w": torch.arange(6.0), "b": torch.ones(3, dtype=torch.bfloat16)}
    with RelayProcess.start("newer-empty", token=token) as empty, RelayProcess.start("newer-full", token=token) as full:
        with Publisher(full.address, token=token) as publisher:
            publisher.publish(5, published.items())
            publisher.wait(5, 20)
        sources = ("127.0.0.1:9", empty.address, full.address)
        digests = set()
        for transfer in (WeightTransfer(), WeightTransfer(transport="tcp")):
            with taken(HeldWeights(5, 2, sources), token, transfer) as (lease, source):
                assert source == full.address
                assert lease.keys() == published.keys()
                assert all(torch.equal(lease[name], tensor) for name, tensor in published.items())
                digests.add(lease.digest)
        assert len(digests) == 1
        with (
            pytest.raises(CheckpointUnusableError, match=r"version 6 could not be taken from any of 3: .*9.* has 5"),
            taken(HeldWeights(6, 3, sources), token, WeightTransfer()),
        ):
            pass
