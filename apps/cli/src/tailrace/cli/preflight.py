"""What can be known to be wrong before anything is started or written."""

from __future__ import annotations

import difflib
import os
import socket
from pathlib import Path

from tailrace.cli.errors import NotHereError
from tailrace.cli.model_files import check_model
from tailrace.contracts import plugins
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.build import build_faults, build_spec

CONNECT_S = 5.0
RAY_CLUSTER_FILE = Path("/tmp/ray/ray_current_cluster")  # noqa: S108 - where Ray notes the cluster of this machine


def check(config: RunConfig) -> None:
    """Check policies, plugins by name, scripted faults, the model's files, devices and the Ray address.

    Raises:
        ConfigError: a policy, a plugin or a fault is unknown, or the model's files are not whole.
        NotHereError: a device or a cluster is not there.
    """
    build_spec(config)
    build_faults(config)
    _registered("rollout.engine", "tailrace.engine", config.rollout.engine, also=("auto",))
    _registered("trainer.backend", "tailrace.backend", config.trainer.backend)
    if config.task.name is None:
        _registered("task.verifier", "tailrace.verifier", config.task.verifier)
    if config.model.path is not None:
        check_model(config.model.path)
    if config.executor.name == "ray" and config.executor.ray_address is not None:
        check_ray(config.executor.ray_address)
    else:
        check_devices(config)


def check_devices(config: RunConfig) -> None:
    """The devices that a run on this machine alone asks for."""
    asked = {
        "executor.device": config.executor.device,
        "trainer.options.device": config.trainer.options.get("device"),
        "rollout.options.device": config.rollout.options.get("device"),
    }
    key = next((key for key, device in asked.items() if str(device).startswith("cuda")), None)
    gpus = config.rollout.replicas * config.executor.replica_gpus
    gpus += config.trainer.processes * config.executor.trainer_gpus
    if key is None and not gpus:
        return
    here = _gpus_here()
    if key is not None and not here:
        raise NotHereError(f"key {key!r}: found {asked[key]!r} and no CUDA device here, expected 'cpu' or 'auto'")
    if gpus > here:
        raise NotHereError(
            f"keys 'executor.replica_gpus' and 'executor.trainer_gpus': found {gpus:g} GPUs asked for and {here} here, "
            "expected no more than there are; --ray-address joins a cluster"
        )


def check_ray(address: str) -> None:
    """Whether something listens where a Ray cluster should."""
    if address == "auto":
        if not os.environ.get("RAY_ADDRESS") and not RAY_CLUSTER_FILE.exists():
            raise NotHereError(
                "--ray-address auto: found no Ray cluster on this machine; start one with: ray start --head"
            )
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdigit():
        raise NotHereError(f"key 'executor.ray_address': found {address!r}, expected auto or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = str(error) or type(error).__name__
        raise NotHereError(
            f"key 'executor.ray_address': no Ray cluster answers at {address} ({reason}); start one with: ray start --head"
        ) from error


def _registered(key: str, group: str, name: str, *, also: tuple[str, ...] = ()) -> None:
    """Whether a plugin of the name is there. It is loaded where it runs, not here."""
    known = [*also, *plugins.names(group)]
    if name in known:
        return
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ConfigError(f"key {key!r}: found {name!r}, expected one of {', '.join(known)}{hint}")


def _gpus_here() -> int:
    try:
        import torch
    except ImportError as error:
        raise NotHereError("GPUs are asked for, and torch is not installed") from error
    count: int = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return count
