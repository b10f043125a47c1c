"""Keeps a Ray cluster for a run whose controllers come and go: ``python -m ...ray_keeper ROOT CPUS SECONDS MACHINES CORES``.

It ends the cluster when it is told to (SIGTERM), and when no controller has claimed the run for so many seconds and the members
have had time to stop by themselves. If it is killed, Ray's processes die with it. A start or an end that hangs ends with its
deadline, also where whoever waits for it is gone.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tailrace.processes import Ending, ProcessId
from tailrace.runtime.hosts import ray_session
from tailrace.runtime.hosts.ray_actor import CLOSE_S
from tailrace.runtime.hosts.ray_cluster import CLAIM, CLUSTER, START_S, TOKEN, RayCluster, Unclaimed, name_run
from tailrace.runtime.hosts.ray_machines import StartedMachines
from tailrace.runtime.hosts.ray_options import check_own, environment, options, own_cluster

_LOOK_S = 0.5
END_S = 60
"""Seconds for Ray to end; then this process does, and Ray's with it."""


def keep(root: Path, cpus: int, unclaimed_s: float, machines: int, cores: int) -> None:
    """Start a cluster, note it in the run directory, and end it when its time has come."""
    # A library that hangs may hold the interpreter, so the kernel ends this process.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(math.ceil(START_S))
    environment(own=True)
    import ray

    run, token = name_run()
    folder = ray_session.make()
    started = None
    try:
        context = ray.init(**options(namespace=run), **own_cluster(cpus, folder, cores))
        session = check_own(context)
        address = context.address_info["gcs_address"]
        started, keeper = StartedMachines(root, address), asdict(ProcessId.current())
        fields = tuple(asdict(machine) for machine in started.start(machines))
        over = Ending()
        for number in (signal.SIGTERM, signal.SIGINT):  # until here they are Ray's, which ends this process
            signal.signal(number, over.ask)
        ray_session.seal(session)
        RayCluster(run, address, token, time.time(), unclaimed_s, str(session), keeper, fields).write(root)
        signal.alarm(0)
        unclaimed = Unclaimed(root)
        while not over.wait(_LOOK_S) and unclaimed.seconds() < unclaimed_s + CLOSE_S:
            ray_session.seal(session)
    finally:
        signal.alarm(END_S)
        if started is not None:
            started.end()
        ray.shutdown()
        for name in (CLUSTER, CLAIM, TOKEN):
            (root / name).unlink(missing_ok=True)
        if not os.environ.get("TAILRACE_DEBUG"):
            ray_session.remove(folder)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
