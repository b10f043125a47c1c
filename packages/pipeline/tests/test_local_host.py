"""The host of threads passes the contract suite of hosts."""

import pytest

from tailrace.pipeline.testing.executor_contract import ExecutorContract
from tailrace.runtime.hosts.local import LocalHost

pytest.importorskip("torch", reason="a real trainer trains a real model")


@pytest.mark.long
class TestLocal(ExecutorContract):
    def make_host(self, started_s):
        return LocalHost(started_s)
