"""Several hosts on one machine: network namespaces on one switch, every link limited in both directions.

    with Hosts(4, rate=100e6) as hosts:
        with hosts.inside(2):              # this thread, and processes and threads that it starts
            RelayProcess.start("third", host=hosts.addresses[2], token=token)

Linux, as root, with `ip` and `tc` (iproute2). Nothing is added to the machine's own network: the switch has a namespace
too. The namespaces bear this process's id; they are removed on leaving, also by Ctrl-C and SIGTERM, and those that a
killed process left at the next start. Hosts share the file system, /dev/shm and the processes of the machine, so relays
need different names.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_PREFIX = "tailrace"
_MTU = 9000
_BURST_BYTES = 256 * 2**10
_QUEUE_BYTES = 2 * 2**20


class Hosts:
    """A context with so many hosts.

    Args:
        count: number of hosts, up to 200.
        rate: of each link and direction, bytes per second on the wire.
    """

    def __init__(self, count: int, rate: float) -> None:
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
            raise SystemExit("several hosts on one machine need root, and ip and tc (iproute2)")
        if not 0 < count <= 200:
            raise ValueError(f"found {count} hosts, expected 1 to 200")
        self.rate = rate
        self._switch = f"{_PREFIX}-{os.getpid()}-switch"
        self._names = [f"{_PREFIX}-{os.getpid()}-{index}" for index in range(count)]
        self.addresses = [f"10.213.7.{index + 1}" for index in range(count)]

    def __enter__(self) -> Hosts:
        _remove_left_overs()
        self._terminated = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._remove()

    @contextlib.contextmanager
    def inside(self, index: int) -> Iterator[None]:
        """Put this thread on a host; sockets, threads and processes that it makes are there for good."""
        with (
            Path("/proc/thread-self/ns/net").open() as before,
            Path(f"/run/netns/{self._names[index]}").open() as there,
        ):
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def cut(self, index: int) -> None:
        """Let a host's link carry nothing in either direction. Nobody is told: what is sent is lost."""
        _run("ip", "-n", self._switch, "link", "set", f"port{index}", "down")

    def heal(self, index: int) -> None:
        """End a cut."""
        _run("ip", "-n", self._switch, "link", "set", f"port{index}", "up")

    def received_bytes(self, index: int) -> int:
        """Bytes that a host's link has taken in so far, headers included."""
        answer = _run("ip", "-n", self._names[index], "-s", "-j", "link", "show", "eth0")
        return int(json.loads(answer)[0]["stats64"]["rx"]["bytes"])

    def _build(self) -> None:
        for name in (self._switch, *self._names):
            _run("ip", "netns", "add", name)
        _run("ip", "-n", self._switch, "link", "add", "bridge", "mtu", str(_MTU), "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "bridge", "up")
        for index, (name, address) in enumerate(zip(self._names, self.addresses, strict=True)):
            port = f"port{index}"
            pair = ["type", "veth", "peer", "name", port, "netns", self._switch, "mtu", str(_MTU)]
            _run("ip", "link", "add", "eth0", "netns", name, "mtu", str(_MTU), *pair)
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            _run("ip", "-n", self._switch, "link", "set", port, "master", "bridge", "up")
            for device in ("lo", "eth0"):
                _run("ip", "-n", name, "link", "set", device, "up")
            for namespace, device in ((name, "eth0"), (self._switch, port)):  # out of the host, and into it
                limit = ["rate", f"{self.rate:.0f}bps", "burst", str(_BURST_BYTES), "limit", str(_QUEUE_BYTES)]
                _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *limit)

    def _remove(self) -> None:
        for name in (*self._names, self._switch):
            _delete(name)
        signal.signal(signal.SIGTERM, self._terminated)


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter the network namespace: {os.strerror(number)}")


def _remove_left_overs() -> None:
    """Namespaces of processes that are gone."""
    for path in Path("/run/netns").glob(f"{_PREFIX}-*"):
        found = re.fullmatch(rf"{_PREFIX}-(\d+)-(?:switch|\d+)", path.name)
        if found and not Path(f"/proc/{found[1]}").exists():
            _delete(path.name)


def _delete(name: str) -> None:
    if Path(f"/run/netns/{name}").exists():
        _run("ip", "netns", "delete", name)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
