"""The host of threads passes the contract suite of hosts."""

import pytest

from tailrace.pipeline.testing.busy_members import ask_behind_members
from tailrace.pipeline.testing.executor_contract import ExecutorContract
from tailrace.runtime.hosts.local import LocalHost

pytest.importorskip("torch", reason="a real trainer trains a real model")


@pytest.mark.long
class TestLocal(ExecutorContract):
    def make_host(self, started_s):
        return LocalHost(started_s)


def test_a_controller_does_not_wait_behind_calls_of_members():
    host = LocalHost(0.0)
    ask_behind_members(host)
    host.close()
