"""Every test of the trainer leaves the process group that it joined: the next one in its process joins another."""

import sys

import pytest


@pytest.fixture(autouse=True)
def no_group_is_left():
    yield
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_initialized():
        dist.destroy_process_group()
        pytest.fail("found a process group that the test had joined, expected it to leave it: close the worker")
