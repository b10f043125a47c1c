"""Ray clusters of tests: one that a run joins, of machines that may be lost, and one for all tests of a class."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tailrace.processes.namespaces import Machine, machines
from tailrace.runtime.executor.seam import Host
from tailrace.runtime.hosts import ray_session
from tailrace.runtime.hosts.ray import RayHost

RAY = str(Path(sys.executable).with_name("ray"))
PORT = 6379
_UP_S = 400.0
_END_S = 20.0
_LOOK_S = 0.2


@contextmanager
def joined_cluster(
    count: int, *options: str, head: Sequence[str] = ()
) -> Iterator[tuple[tuple[Machine, ...], Mapping[str, str]]]:
    """Start Ray on so many machines with a network each; all that runs there ends with this context.

    Args:
        options: of ``ray start`` on each, such as ``--num-gpus=2``.
        head: further ones of the head, which lay over these.

    Yields:
        The machines, the head first, and the environment of a process that joins at its `PORT`.
    """
    folder = tempfile.mkdtemp(prefix="tr-", dir="/tmp")
    # A trainer of an earlier test in this process has named loopback for its collectives; machines have another one each.
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_SOCKET_IFNAME")}
    environment = {
        **inherited,
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_raylet_start_wait_time_s": "120",  # of 30 s a busy machine may take more
        "RAY_worker_niceness": "0",  # not Ray's 15: beside another program a run would nearly stand still
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # a cluster of its own that this process had may have left the contrary
    }
    started: list[subprocess.Popen[Any]] = []

    def start(machine: Machine, *own: str) -> None:
        command = [RAY, "start", "--block", f"--node-ip-address={machine.address}", "--num-cpus=4"]
        command += ["--object-store-memory=80000000", *options, *own]
        with Path(folder, f"{machine.address}.log").open("w") as log:
            started.append(machine.start(command, env=environment, stdout=log, stderr=log, start_new_session=True))

    with machines(count) as found:
        try:
            start(found[0], "--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}/r", *head)
            until = time.monotonic() + _UP_S
            for number, machine in enumerate(found):
                if number:
                    start(machine, f"--address={found[0].address}:{PORT}")
                log = Path(folder, f"{machine.address}.log")
                while "Ray runtime started" not in log.read_text():
                    assert time.monotonic() < until, log.read_text()[-2000:]
                    if started[-1].poll() is not None:
                        assert number, log.read_text()[-2000:]
                        lose([machine])  # a busy machine may take longer than `ray start` waits for it
                        start(machine, f"--address={found[0].address}:{PORT}")
                    time.sleep(_LOOK_S)
            yield found, environment
        finally:
            lose(found)
            for process in started:
                process.wait(_END_S)
            shutil.rmtree(folder, ignore_errors=True)


def lose(lost: Iterable[Machine]) -> None:
    """SIGKILL to all that runs on machines, but for the processes that hold their networks."""
    lost = list(lost)
    networks = {machine.network for machine in lost}
    spare = {machine.holder for machine in lost}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int(path.name) not in spare and (path / "ns/net").readlink() in networks:
                os.kill(int(path.name), signal.SIGKILL)
        except OSError:  # it has just ended, or belongs to someone else
            continue


# The Ray host in tests: one cluster for all tests of a class.
#
# class TestMyContract(OnSharedCluster, MyContract): ...


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
