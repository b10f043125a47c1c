"""The machines of a Ray cluster where the host chooses who stands on which: their names, and whether one is gone.

Ray says that a machine is gone only after some ten seconds without a sign of it. A member that died is asked for sooner: nobody
listens any more where Ray's process of its machine did. A machine that stands still still listens.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable

from tailrace.runtime.hosts.ray_sites import Machine, machine_names

_CONNECT_S = 2.0
_AGAIN_S = 0.5  # the processes of a machine that is lost do not end at the same moment


class ClusterMachines:
    """What is known of the cluster's machines. Any thread may ask.

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
