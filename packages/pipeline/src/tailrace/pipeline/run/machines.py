"""The machines of a run's own cluster: their names, and what a run with several of them cannot have."""

from __future__ import annotations

from tailrace.pipeline.config.gathered import Gathered
from tailrace.pipeline.config.models import RunConfig

_KEY = "key 'executor.machines'"


def machine_names(config: RunConfig) -> tuple[str, ...]:
    """Names of the machines over which members are placed; empty if the host chooses where they stand."""
    count = config.executor.machines
    return tuple(map(str, range(count))) if count > 1 else ()


def check_own_machines(config: RunConfig) -> None:
    """Check that a run can have its machines.

    Raises:
        ConfigError: it cannot; a line for each reason.
    """
    executor, gathered = config.executor, Gathered()
    if executor.machines < 2:
        return
    found = f"{_KEY}: found {executor.machines}"
    if executor.name != "ray":
        gathered.add(f"{found} with executor.name = {executor.name!r}, expected 'ray': they are nodes of a Ray cluster")
    if executor.ray_address is not None:
        gathered.add(f"{found} with a cluster to join, expected 1: a cluster has the machines that it has")
    if executor.replica_gpus or executor.trainer_gpus or executor.scorer_gpus:
        gathered.add(f"{found} with members that need GPUs, expected 1: those of one host are not divided")
    if config.relay.sites:
        gathered.add(f"{found} with 'relay.sites', expected one of the two: all of them are at one site")
    if config.trainer.colocated:
        gathered.add(f"{found} with trainer.colocated, expected 1: replicas stand on the trainer's devices there")
    gathered.done()
