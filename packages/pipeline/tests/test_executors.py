"""The hosts of real members pass one contract suite."""

import pytest

from tailrace.pipeline.hosts.local import LocalHost
from tailrace.pipeline.hosts.ray import RayHost
from tailrace.pipeline.testing.executor_contract import ExecutorContract

pytest.importorskip("torch", reason="a real trainer trains a real model")


class TestLocal(ExecutorContract):
    def make_host(self, started_s):
        return LocalHost(started_s)


class SharedCluster(RayHost):
    """A host that ends its own members, and leaves the cluster to the next one."""

    def __init__(self, started_s):
        super().__init__(started_s=started_s)
        self.members = []

    def spawn(self, *arguments):
        self.members.append(super().spawn(*arguments))
        return self.members[-1]

    def close(self):
        for member in self.members:
            member.kill()


class TestRay(ExecutorContract):
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def cluster(cls):
        ray = pytest.importorskip("ray")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "1")
            yield
            ray.shutdown()

    def make_host(self, started_s):
        return SharedCluster(started_s)
