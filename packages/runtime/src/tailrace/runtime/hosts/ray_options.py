"""How this package's processes use Ray: environment variables that it reads at import, and the arguments of ``ray.init``."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from tailrace.runtime.errors import RoleError
from tailrace.runtime.hosts import ray_session

LOOPBACK = "127.0.0.1"


def environment(*, own: bool) -> None:
    """Set what Ray reads when it is imported.

    Args:
        own: whether the cluster is the run's own, on this machine.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # The raylet's messages about dead workers, of ten lines each: the executor reports each death in one.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")
    # Under `uv run`, Ray would send the working directory to each machine and start its workers there through uv. All have the
    # same installation; so it takes seconds at best, and with `uv run --no-sync` no worker would ever come up.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    if own:
        # Ray's workers have niceness 15 otherwise: beside any other program a run would nearly stand still.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # Nobody looks at Ray's own metrics of a run's own cluster, nor at its list of calls: it has no dashboard.
        # The list alone made Ray's server grow by 2.1 kB a trajectory, up to 100,000 calls.
        for name in ("RAY_enable_metrics_collection", "RAY_event_stats", "RAY_task_events_report_interval_ms"):
            os.environ.setdefault(name, "0")
        # Ray takes the machine's own address for a node that is told 127.0.0.1, unless it supports no clusters of several
        # machines, as by default on macOS; and what does not stand at 127.0.0.1 listens to everybody.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        if (constants := sys.modules.get("ray._private.ray_constants")) is not None:  # it has read that already
            constants.ENABLE_RAY_CLUSTER = False  # type: ignore[attr-defined]


def options(namespace: str | None = None) -> dict[str, Any]:
    """Arguments of ``ray.init``.

    Args:
        namespace: in which members are found by name; None: one of this process's own.
    """
    found: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": True,
        "ignore_reinit_error": True,
    }
    return found if namespace is None else {**found, "namespace": namespace}


def own_cluster(cpus: int, folder: Path, cores: int = 0) -> dict[str, Any]:
    """Further arguments of ``ray.init`` that start a cluster on this machine, whatever RAY_ADDRESS says.

    Args:
        cpus: logical CPUs.
        folder: its private folder, see `ray_session`.
        cores: cores of the CPU that stand for GPUs; 0: it has the GPUs that Ray finds.
    """
    own = {"address": "local", "num_cpus": cpus, "include_dashboard": False, "dashboard_host": LOOPBACK}
    return own | {"_temp_dir": ray_session.temporary(folder)} | ({"num_gpus": cores} if cores else {})


def check_own(context: Any) -> Path:
    """Check that a cluster that was started here is out of other machines' reach.

    Returns:
        Its session's directory.

    Raises:
        RoleError: it is not.
    """
    found = context.address_info
    if found["node_ip_address"] != LOOPBACK:
        raise RoleError(
            f"Ray {context.ray_version} started a cluster at {found['node_ip_address']}, expected {LOOPBACK}: other machines "
            "could reach it"
        )
    return Path(found["session_dir"])
