"""A run that goes on, and who controls it: each controller has an epoch, and one that is silent may be replaced.

tailrace attach ──► take_over(directory) ──► lock, epoch, a log of its own ──► replay ──► the members, which live on
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import RunDirectoryError, resume_command
from tailrace.pipeline.run.device_shares import cores_here
from tailrace.pipeline.run.directory import RunDirectory, lock_soon, read_json, write_text
from tailrace.pipeline.run.eventlog import take_over_log
from tailrace.pipeline.run.machines import machine_names
from tailrace.runtime.hosts.ray import RayHost
from tailrace.runtime.hosts.ray_cluster import RayCluster, claimed_ago_s, name_run, start_cluster

SILENT_S = 10.0
"""A controller that has not claimed its run for so long may be replaced, even if its process lives."""
ATTACHES_S = 60.0
"""For how long one that attaches may keep others from it: it looks, locks the run and makes a log of its own."""
_CPUS = 64  # logical ones: members are placed by GPU and memory


def next_epoch(directory: RunDirectory) -> int:
    """The epoch of the controller that holds the directory's lock from now on; greater than all before it.

    Raises:
        RunWriteError: the disk is full or broken.
    """
    path = directory.root / "epoch"
    epoch = 1 + (int(path.read_text()) if path.exists() else 0)
    write_text(path, str(epoch), sync=True)
    return epoch


def take_over(directory: RunDirectory) -> RayCluster:
    """Take the place of a controller that died or is silent: lock the run, and go on in a log of its own.

    Returns:
        Where the members live.

    Raises:
        RunDirectoryError: the run is finished, simulated or never began, its controller works, no member lives, or another
            process that attaches stands still.
    """
    with _alone(directory):
        cluster = check_left(directory)
        directory.lock_anew()
        take_over_log(directory.events)
    return cluster


def check_left(directory: RunDirectory) -> RayCluster:
    """Check that a controller can be replaced, and return where the members live; raises as `take_over` does."""
    if directory.simulated is not None:
        raise RunDirectoryError(f"{directory.root}: found a simulated run, expected a real one to attach to")
    if directory.summary.exists():
        raise RunDirectoryError(
            f"{directory.root}: found a finished run (summary.json), expected one whose controller died"
        )
    silent_s = claimed_ago_s(directory.root)
    if directory.running() and silent_s < SILENT_S:
        raise RunDirectoryError(
            f"{directory.root}: found a controller at work (process {_owner(directory)}, heard {silent_s:.0f} s ago), "
            "expected one that died; watch it with: tailrace status --watch"
        )
    cluster = RayCluster.read(directory.root)
    if cluster is None or not directory.decided():
        raise RunDirectoryError(
            f"{directory.root}: found no member of it that lives, expected those that its controller left; "
            f"go on with: {resume_command(directory.root)}"
        )
    return cluster


def make_cluster(config: RunConfig, directory: RunDirectory) -> RayCluster:
    """A place for the members of a run on Ray, which they keep when their controller dies. A cluster of its own ends before."""
    left = RayCluster.read(directory.root)
    if left is not None:
        left.end()
    unclaimed_s = config.deadlines.unclaimed_s
    if config.executor.ray_address is None:
        machines = len(machine_names(config))
        root, cores = directory.root.absolute(), cores_here(config)
        return start_cluster(root, cpus=_CPUS, unclaimed_s=unclaimed_s, machines=machines, cores=cores)
    run, token = name_run()
    patience_s = max(config.deadlines.model_dump().values())
    return RayCluster(run, config.executor.ray_address, token, time.time(), unclaimed_s, patience_s=patience_s)


def join(cluster: RayCluster, directory: RunDirectory, left: RayCluster | None = None) -> RayHost:
    """The host of a new controller. If the cluster cannot be joined, it ends.

    Args:
        left: where an earlier controller left members that end now: they would hold store and devices until they notice
            that nobody controls them, and one that stands still would for ever.
    """
    try:
        host = RayHost(cluster=cluster, root=directory.root.absolute(), epoch=next_epoch(directory))
        if left is not None and left.address == cluster.address and left.run != cluster.run:
            host.end_run(left.run)
        if cluster.keeper is None:
            cluster.write(directory.root)
        return host
    except BaseException:
        cluster.end()
        raise


def shown_s(cluster: RayCluster | None, past: float) -> float:
    """Seconds on the clock of a run, which goes on while no controller is there.

    Args:
        cluster: where its members live.
        past: seconds on it at the last instant of the log.
    """
    return past if cluster is None else max(past, time.time() - cluster.began_at)


@contextmanager
def _alone(directory: RunDirectory) -> Iterator[None]:
    """Two that attach at once: the second one finds the first at work."""
    handle = os.open(directory.root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            lock_soon(handle, ATTACHES_S)
        except BlockingIOError as error:
            raise RunDirectoryError(
                f"{directory.root}: found another process that has attached for {ATTACHES_S:.0f} s without an end, expected "
                f"none; `fuser -v {directory.root}` names it: end it, and attach again"
            ) from error
        yield
    finally:
        os.close(handle)


def _owner(directory: RunDirectory) -> str:
    return (directory.root / "lock").read_text().strip() or "unknown"


# A run that has begun and goes on: whether it can, and with which faults.


def check_resumed(directory: RunDirectory, changed: Mapping[str, Sequence[Any]]) -> None:
    """Check that there is something left to do.

    Args:
        directory: the run.
        changed: value before and after by key.

    Raises:
        RunDirectoryError: the run is simulated, or complete.
    """
    check_real(directory)
    if directory.summary.exists():
        steps = directory.configuration().pipeline.steps
        done = read_json(directory.summary).get("steps", steps)  # fewer if one died that was to make more
        if changed.get("pipeline.steps", (done, steps))[1] <= done:
            raise RunDirectoryError(
                f"{directory.root}: found a finished run (summary.json), expected one to go on with, or "
                f"--set pipeline.steps=N with more than its {done}"
            )


def to_go_on(config: RunConfig, directory: RunDirectory, faults: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration of a run that has begun: its faults, scripted and at random, belong to its first driver.

    Args:
        faults: those of the driver that goes on, by their keys of a configuration.

    Raises:
        RunDirectoryError: the run is simulated.
    """
    check_real(directory)
    first = {"faults": (), "mtbf_s": None} if directory.decided() else {}
    return config.model_copy(update={**first, **(faults or {})})


def check_real(directory: RunDirectory) -> None:
    """Check that it is no simulated run, which nobody goes on with."""
    if directory.simulated is not None:
        raise RunDirectoryError(f"{directory.root}: found a simulated run, expected a real one to go on with")
