"""Machines of a test: network namespaces on one host, which share its files and nothing of its network. Linux only.

    with machines(2) as (first, second):
        first.start(["ray", "start", "--head", f"--node-ip-address={first.address}"])

They stand in a user namespace of their own, so no right on this machine is needed and nothing of it changes. No route leads
elsewhere: a look-up of a name fails at once, as it does without a name server.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.processes.errors import NamespaceError

INTERFACE = "node0"
"""The interface of each machine on which the others reach it."""
_TOOLS = ("unshare", "nsenter", "ip")
_WAIT_S = 10.0
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine.

    Args:
        address: under which the others reach it.
        holder: a process that stands in its network and does nothing.
        network: what ``/proc/PID/ns/net`` of every process there links to.
    """

    address: str
    holder: int
    network: Path

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process there; `options` are those of `subprocess.Popen`."""
        return subprocess.Popen([*_enter(self.holder), *command], **options)  # noqa: S603 - the caller's


def why_not() -> str:
    """Why no machines can be made here; empty if they can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if sys.platform != "linux" or missing:
        return f"network namespaces need Linux and {', '.join(missing or _TOOLS)}"
    made = subprocess.run(
        ["unshare", "-rn", "sh", "-c", "ip link add left type veth peer name right && ip link add switch type bridge"],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    return f"this system makes no network namespaces: {made.stderr.strip()}" if made.returncode else ""


@contextmanager
def machines(count: int) -> Iterator[tuple[Machine, ...]]:
    """Make machines, each of which reaches the others. What runs there is its starter's to end.

    Raises:
        NamespaceError: they cannot be made here.
    """
    if reason := why_not():
        raise NamespaceError(reason)
    with ExitStack() as held:
        switch = _hold(held, ["unshare", "-rn"])
        _in(switch, "ip link set lo up && ip link add switch type bridge && ip link set switch up")
        found = []
        for number in range(count):
            holder, address = _hold(held, [*_enter(switch), "unshare", "-n"]), f"10.77.0.{number + 1}"
            _in(switch, f"ip link add port{number} type veth peer name {INTERFACE} netns {holder}")
            _in(switch, f"ip link set port{number} master switch up")
            _in(holder, f"ip link set lo up && ip addr add {address}/24 dev {INTERFACE} && ip link set {INTERFACE} up")
            found.append(Machine(address, holder, Path(f"/proc/{holder}/ns/net").readlink()))
        yield tuple(found)


def _hold(held: ExitStack, prefix: Sequence[str]) -> int:
    """Start a process that stands in new namespaces. Returns its pid once it does. Ctrl-C at a terminal does not reach it."""
    holder = held.enter_context(
        subprocess.Popen(  # noqa: S603
            [*prefix, "sleep", "infinity"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
    )
    held.callback(holder.kill)
    until = time.monotonic() + _WAIT_S
    while (Path("/proc") / str(holder.pid) / "comm").read_text().strip() != "sleep":
        if holder.poll() is not None or time.monotonic() > until:
            raise NamespaceError(f"no process came up in a namespace within {_WAIT_S:.0f} s")
        time.sleep(_LOOK_S)
    return holder.pid


def _in(holder: int, script: str) -> None:
    ran = subprocess.run(  # noqa: S603 - this module's own scripts
        [*_enter(holder), "sh", "-c", script], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise NamespaceError(f"a machine could not be made: {ran.stderr.strip()}")


def _enter(holder: int) -> list[str]:
    return ["nsenter", "-t", str(holder), "-U", "-n", "--preserve-credentials"]
