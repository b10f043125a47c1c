"""The machines of a Ray cluster, whether one is gone, and those that a run starts for itself.

A run's own are Ray nodes on one host, each with a directory of its own, which die like machines.

    head        Ray's own processes and the controller's connection; data, scorer and ranker stand here
    machine 0   a raylet, the members there, and ``machines/0`` of the run directory, which is the machine's disk
    machine 1   ...

Every process of a machine bears its directory in its environment. So all of them are found when it is killed, those too that
outlived who started them.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailrace.processes import ProcessId
from tailrace.runtime.errors import DeadlineError
from tailrace.runtime.hosts.ray_options import LOOPBACK
from tailrace.runtime.hosts.ray_placement import Machine, machine_names

MARK = "TAILRACE_MACHINE"
"""The environment variable that names the directory of a process's machine."""
MACHINES = "machines"
_STORE_BYTES = 80 << 20  # members hand each other nothing large through Ray
_UP_S = 120.0
_KILL_S = 10.0
_LOOK_S = 0.05
_CONNECT_S = 2.0
_AGAIN_S = 0.5  # the processes of a machine that is lost do not end at the same moment


@dataclass(frozen=True, slots=True)
class RayMachine:
    """One machine.

    Args:
        name: its name in a run.
        node: Ray's id of it.
        raylet: the process that it lives with, as the fields of a `ProcessId`.
        directory: what its disk holds.
    """

    name: str
    node: str
    raylet: Mapping[str, Any]
    directory: str

    @property
    def alive(self) -> bool:
        """Whether it is there."""
        return ProcessId(**self.raylet).alive()

    def kill(self) -> None:
        """SIGKILL to all that runs there; its directory goes too.

        Raises:
            DeadlineError: something there does not die.
        """
        until = time.monotonic() + _KILL_S
        while left := list(_processes(self.directory)):
            for process in left:
                process.kill()
            if time.monotonic() > until:
                raise DeadlineError(f"processes {', '.join(str(p.pid) for p in left)} of machine {self.name} live on")
            time.sleep(_LOOK_S)
        shutil.rmtree(self.directory, ignore_errors=True)


class StartedMachines:
    """Starts machines beside the head of a cluster, and ends them.

    Args:
        root: the run directory.
        gcs_address: the head's.
    """

    def __init__(self, root: Path, gcs_address: str) -> None:
        self._root, self._gcs = root / MACHINES, gcs_address
        self._nodes: list[Any] = []

    def start(self, count: int) -> list[RayMachine]:
        """Start so many.

        Raises:
            DeadlineError: one did not join the cluster in time.
        """
        import ray
        from ray._private.node import Node  # what ``ray start`` is made of
        from ray._private.parameter import RayParams

        raylets = {}
        for index in range(count):
            directory = self._root / str(index)
            directory.mkdir(parents=True, exist_ok=True)
            parameters = RayParams(
                gcs_address=self._gcs,
                node_ip_address=LOOPBACK,  # at any other, 127.0.0.2 too, Ray listens to everybody; a controller joins the head
                num_cpus=0,
                num_gpus=0,
                object_store_memory=_STORE_BYTES,
                min_worker_port=0,
                max_worker_port=0,
                node_manager_port=0,
                include_log_monitor=False,
                dashboard_agent_listen_port=None,
                labels={MACHINES: str(index)},
                env_vars={MARK: str(directory)},
            )
            node = Node(parameters, head=False, shutdown_at_exit=True, spawn_reaper=True)
            self._nodes.append(node)
            raylets[str(index)] = asdict(ProcessId.of(node.all_processes["raylet"][0].process.pid)), str(directory)
        until = time.monotonic() + _UP_S
        while len(nodes := dict(_labelled(ray.nodes()))) < count:
            if time.monotonic() > until:
                raise DeadlineError(f"waited {_UP_S:.0f} s for {count} machines to join, of which {len(nodes)} came")
            time.sleep(_LOOK_S)
        return [RayMachine(name, nodes[name], *found) for name, found in raylets.items()]

    def end(self) -> None:
        """End all that live."""
        for node in self._nodes:
            node.kill_all_processes(check_alive=False, allow_graceful=False)


def own_machine() -> Path | None:
    """The directory of this process's machine; None if a run has none of its own."""
    found = os.environ.get(MARK)
    return None if found is None else Path(found)


def _labelled(nodes: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        name = (node.get("Labels") or {}).get(MACHINES)
        if name is not None and node["Alive"]:
            yield name, node["NodeID"]


def _processes(directory: str) -> Iterator[ProcessId]:
    """All processes of a machine that live."""
    mark = f"{MARK}={directory}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            marked = mark in path.read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile, or belongs to someone else
            continue
        process = ProcessId.of(int(path.parent.name))
        if marked and process.alive():
            yield process


class ClusterMachines:
    """The machines where the host chooses who stands on which. Any thread may ask.

    Ray says that a machine is gone only after some ten seconds without a sign of it. A member that died is asked for sooner:
    nobody listens any more where Ray's process of its machine did. A machine that stands still still listens.

    Args:
        lost: whether one may be gone and the run goes on; otherwise nobody is asked.
    """

    def __init__(self, *, lost: bool) -> None:
        self._lost = lost
        self._rows: dict[str, Machine] = {}
        self._names: dict[str, str] = {}
        self._listening: dict[str, tuple[str, int]] = {}
        self._gone: set[str] = set()
        self._lock = threading.Lock()

    def look(self, rows: Iterable[Machine]) -> None:
        """Take in the rows of `ray.nodes()`. A machine keeps the first name that it was given here."""
        rows = list(rows)
        with self._lock:
            self._rows |= {row["NodeID"]: row for row in rows}
            self._names = machine_names(self._rows.values()) | self._names
            for row in rows:
                self._listening[row["NodeID"]] = row["NodeManagerAddress"], int(row["NodeManagerPort"])
                if not row["Alive"]:
                    self._gone.add(row["NodeID"])

    def name(self, node: str) -> str:
        """The name of a machine, by Ray's id; the id of one that was not seen yet."""
        return self._names.get(node, node)

    def id(self, name: str) -> str:
        """Ray's id of a machine; the name itself of an unknown one."""
        return next((node for node, known in self._names.items() if known == name), name)

    def gone(self, node: str) -> bool:
        """Whether the machine of a member that has just died is gone. It takes half a second if not, five if it is slow."""
        for wait_s in (0.0, _AGAIN_S) if self._lost else ():
            time.sleep(wait_s)
            with self._lock:
                known = node in self._gone
                address = self._listening.get(node)
            if known:
                return True
            listens = None if address is None else _listens(*address)
            if listens is False or (address is not None and listens is None and wait_s):  # slow twice in a row
                with self._lock:
                    self._gone.add(node)
                return True
        return False


def _listens(host: str, port: int) -> bool | None:
    """Whether somebody listens at an address; None if there was no answer in time."""
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except TimeoutError:
        return None
    except OSError:
        return False
    return True
