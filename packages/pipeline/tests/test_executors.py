"""Both executors pass one contract suite."""

from tailrace.pipeline.executors.local import LocalHost
from tailrace.pipeline.executors.ray import RayHost
from tailrace.pipeline.testing.executor_contract import ExecutorContract


class TestLocal(ExecutorContract):
    def make_host(self):
        return LocalHost()


class TestRay(ExecutorContract):
    def make_host(self):
        return RayHost()
