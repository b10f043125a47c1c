"""How this package's processes use Ray: environment variables that it reads at import, and the arguments of ``ray.init``."""

from __future__ import annotations

import logging
import os
from typing import Any


def environment(*, own: bool) -> None:
    """Set what Ray reads when it is imported.

    Args:
        own: whether the cluster is the run's own, on this machine.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # The raylet's messages about dead workers, of ten lines each: the executor reports each death in one.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")
    if own:
        # Under `uv run`, Ray would start each worker through uv too, which takes seconds and changes nothing.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        # Ray's workers have niceness 15 otherwise: beside any other program a run would nearly stand still.
        os.environ.setdefault("RAY_worker_niceness", "0")


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
