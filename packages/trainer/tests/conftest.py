"""Every test of the trainer leaves the process group that it joined: the next one in its process joins another."""

import sys

import pytest


def left_group() -> bool:
    """Whether this process is in a process group, which it leaves."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_initialized():
        return False
    dist.destroy_process_group()
    return True


@pytest.fixture(autouse=True)
def no_group_is_left():
    if left_group():
        pytest.fail("found a process group that a test of another package had joined before, expected it to leave it")
    yield
    if left_group():
        pytest.fail("found a process group that the test had joined, expected it to leave it: close the worker")
