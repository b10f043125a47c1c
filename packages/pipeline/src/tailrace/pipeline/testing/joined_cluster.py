"""A Ray cluster that a run joins: machines with a network each (`tailrace.processes.namespaces`), of which any may be lost."""

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
from typing import Any

from tailrace.processes.namespaces import Machine, machines

RAY = str(Path(sys.executable).with_name("ray"))
PORT = 6379
_UP_S = 400.0
_END_S = 20.0
_LOOK_S = 0.2


@contextmanager
def joined_cluster(
    count: int, *options: str, head: Sequence[str] = ()
) -> Iterator[tuple[tuple[Machine, ...], Mapping[str, str]]]:
    """Start Ray on so many machines; all that runs there ends with this context.

    Args:
        options: of ``ray start`` on each, such as ``--num-gpus=2``.
        head: further ones of the head, which lay over these.

    Yields:
        The machines, the head first, and the environment of a process that joins at its `PORT`.
    """
    folder = tempfile.mkdtemp(prefix="tr-", dir="/tmp")
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_raylet_start_wait_time_s": "120",  # of 30 s a busy machine may take more
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
    networks = {Path(f"/proc/{machine.holder}/ns/net").readlink() for machine in lost}
    spare = {machine.holder for machine in lost}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int(path.name) not in spare and (path / "ns/net").readlink() in networks:
                os.kill(int(path.name), signal.SIGKILL)
        except OSError:  # it has just ended, or belongs to someone else
            continue
