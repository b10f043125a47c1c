"""Processor time of a run's processes by role, and of the whole machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

SAMPLE_S = 1.0
DRIVER, RAY, OTHER = "driver", "ray", "other"
_RAY = ("raylet", "gcs_server", "ray::", "log_monitor", "dashboard", "runtime_env_agent")

Sample = tuple[float, dict[str, float]]
"""A time of day, and the processor seconds of each role until then; `machine` is all that ran on the machine."""


def busy_core_seconds() -> float:
    """Processor seconds that all processes of the machine have used since it started, idle time and waiting left out."""
    import psutil  # type: ignore[import-untyped]  # Ray brings it

    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


class ProcessorTime:
    """Processor seconds of a process and everything below it, by role, sampled once a second.

    What a member has started counts as its own: a scorer's workers, a relay's server. Seconds of processes that ended count
    as far as the last sample before their end.

    Args:
        root: the process; None: this one.
    """

    def __init__(self, root: int | None = None) -> None:
        self.samples: list[Sample] = []
        self._root = os.getpid() if root is None else root
        self._roles: dict[int, str] = {}
        self._seen: dict[tuple[int, float], tuple[str, float]] = {}  # a process: its role and seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="processor time", daemon=True)

    def members(self, members: Iterable[Mapping[str, object]], driver: int = 0) -> None:
        """Note the members' processes, as the status has them.

        Args:
            driver: the process of the controller; 0: the root.
        """
        self._roles = {int(str(one["pid"])): str(one["role"]) for one in members if one["pid"]}
        self._roles[driver or self._root] = DRIVER

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.samples.append((time.time(), {**self._used(), "machine": busy_core_seconds()}))

    def _used(self) -> dict[str, float]:
        import psutil

        below: dict[int, tuple[int, str]] = {}  # parent and name
        found = []
        try:
            root = psutil.Process(self._root)
            processes = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            processes = []
        for process in processes:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    found.append((process.pid, process.create_time(), times.user + times.system))
                    below[process.pid] = process.ppid(), process.name()
            except psutil.Error:  # it ended between the listing and the question
                continue
        for pid, created, seconds in found:
            self._seen[pid, created] = self._role(pid, below), seconds
        used: dict[str, float] = {}
        for role, seconds in self._seen.values():
            used[role] = used.get(role, 0.0) + seconds
        return used

    def _role(self, pid: int, below: Mapping[int, tuple[int, str]]) -> str:
        """The role of the nearest member above a process."""
        while pid in below:
            parent, name = below[pid]
            if pid in self._roles:
                return self._roles[pid]
            if name.startswith(_RAY):
                return RAY
            pid = parent
        return OTHER


def cores(samples: Sequence[Sample], begin_s: float, end_s: float) -> dict[str, float]:
    """Cores that each role kept busy between two times of day, the busiest first; empty without two samples between them."""
    inside = [(at_s, used) for at_s, used in samples if begin_s <= at_s <= end_s]
    if len(inside) < 2:
        return {}
    (from_s, before), (to_s, after) = inside[0], inside[-1]
    found = {role: (after[role] - before.get(role, 0.0)) / (to_s - from_s) for role in after}
    return dict(sorted(found.items(), key=lambda item: -item[1]))
