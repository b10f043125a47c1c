"""The Ray host in tests: one cluster for all tests of a class.

class TestMyContract(OnSharedCluster, MyContract): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tailrace.runtime.executor.seam import Host
from tailrace.runtime.hosts import ray_session
from tailrace.runtime.hosts.ray import RayHost


class SharedCluster(RayHost):
    """A host that ends its own members, and leaves the cluster to the next one."""

    def __init__(self, started_s: float) -> None:
        super().__init__(started_s=started_s)
        self._spawned: list[Any] = []

    @property
    def folder(self) -> Path | None:
        """The cluster's private folder, if this host started it."""
        return self._folder

    def spawn(self, *arguments: Any) -> Any:
        """A member, which `close` ends."""
        self._spawned.append(super().spawn(*arguments))
        return self._spawned[-1]

    def close(self) -> None:
        """End the members."""
        for member in self._spawned:
            member.kill()


class OnSharedCluster:
    """Provides the hosts of a contract suite, and the cluster that they share."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def cluster(cls) -> Iterator[None]:
        """A cluster of this class's own, which ends with its last test."""
        with pytest.MonkeyPatch.context() as patch:
            ray = pytest.importorskip("ray")
            patch.setenv("OMP_NUM_THREADS", "1")
            patch.setenv("RAY_worker_niceness", "0")  # members of a test are not to starve beside other tests
            patch.setenv(
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"
            )  # the host sets it, and later tests join clusters of others
            yield
            ray.shutdown()
            for folder in cls._folders:
                ray_session.remove(folder)
            cls._folders.clear()

    _folders: ClassVar[list[Path]] = []

    def make_host(self, started_s: float) -> Host:
        """A host on the shared cluster."""
        host = SharedCluster(started_s)
        self._folders.extend([] if host.folder is None else [host.folder])
        return host
