"""The machines of a run's own cluster: their names, and what a run with several of them cannot have."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.policies import build_policy
from tailrace.pipeline.errors import ConfigError, Gathered
from tailrace.pipeline.run.pools import ranker_gpus, relay_count, replica_pools
from tailrace.trainer.errors import TrainerConfigError
from tailrace.trainer.network_interfaces import Interfaces, interfaces, told_interface

DISK, PEER = "disk", "peer"
_WHERE = "key 'checkpoint.domains'"
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
    if executor.replica_gpus or executor.trainer_gpus or executor.scorer_gpus or ranker_gpus(config):
        gathered.add(f"{found} with members that need GPUs, expected 1: those of one host are not divided")
    if config.relay.sites:
        gathered.add(f"{found} with 'relay.sites', expected one of the two: all of them are at one site")
    gathered.done()


def check_interface(config: RunConfig) -> None:
    """Check that this machine has the interface on which the trainer's ranks are to speak, if no cluster is joined.

    Raises:
        ConfigError: it has not.
    """
    if config.trainer.interface and config.executor.ray_address is None:
        check_interfaces(config, {"": interfaces()})


def check_interfaces(config: RunConfig, machines: Mapping[str, Interfaces]) -> None:
    """Check that every machine has the interface on which the trainer's ranks are to speak.

    Args:
        machines: the interfaces of each machine, by its address; empty for this one.

    Raises:
        ConfigError: one has not; a line for each.
    """
    gathered = Gathered()
    for machine, there in machines.items():
        try:
            told_interface(config.trainer.interface, there)
        except TrainerConfigError as error:
            gathered.add(f"{error} on the machine {machine}" if machine else str(error))
    gathered.done()


def check_standby(config: RunConfig) -> None:
    """Check that a trainer that loses its machine will find a standby, if recovery looks for one (RobustRL, section 5.1.3).

    Raises:
        ConfigError: there is no machine, no replica of the trainer's kind, or not one more than the trainer's processes take.
    """
    key = "key 'pipeline.recovery.standby'"
    if not build_policy("recovery", config.pipeline.recovery).takes_standbys():
        return
    if not machine_names(config) and config.executor.ray_address is None:
        raise ConfigError(f"{key}: found it on 1 machine, expected executor.machines = 2 or more, or a cluster to join")
    pools, replicas = replica_pools(config), config.rollout.replicas
    if pools:
        replicas = sum(pool.count for pool in pools if pool.standby)
        other = ", ".join(pool.name for pool in pools if not pool.standby)
        if not replicas:
            raise ConfigError(
                f"{key}: found only replicas of another kind of device or at another site than the trainer's (pools {other}), "
                "expected standbys of its kind at its site"
            )
    executor, reserve = config.executor, config.trainer.processes
    if executor.replica_gpus and executor.trainer_gpus:  # what is lent are devices
        reserve = math.ceil(reserve * executor.trainer_gpus / executor.replica_gpus)
    if replicas <= reserve:
        raise ConfigError(
            f"{key} and 'rollout.replicas': found {replicas} replicas that can stand in, expected at least {reserve + 1}: "
            f"as many as the trainer's {config.trainer.processes} processes take ({reserve}), and one that goes on generating"
        )


# In how many places that fail apart from each other a checkpoint stands: the trainer's disk, and another machine's memory.


def checkpoint_holders(config: RunConfig) -> tuple[str, ...]:
    """Ids of relays whose machines may hold checkpoints; empty if the disk is all that is asked for."""
    return tuple(map(str, range(relay_count(config)))) if PEER in config.checkpoint.domains else ()


def check_domains(config: RunConfig) -> None:
    """Check that a run can have the failure domains that it asks for, as far as its configuration tells.

    Raises:
        ConfigError: it cannot.
    """
    domains = config.checkpoint.domains
    if DISK not in domains or len(set(domains)) < len(domains):
        raise ConfigError(
            f"{_WHERE}: found {list(domains)}, expected '{DISK}', and '{PEER}' beside it for a second domain"
        )
    if PEER not in domains:
        return
    if config.executor.name != "ray":
        raise ConfigError(
            f"{_WHERE} and 'executor.name': found '{PEER}' with {config.executor.name!r}, where all members share one machine: "
            "expected 'ray' on several"
        )
    if (relays := relay_count(config)) < 2:
        raise ConfigError(
            f"{_WHERE} and 'relay.count': found '{PEER}' with {relays} relay, expected one on each of two machines or more: a "
            "relay beside the trainer is no second failure domain"
        )
    if config.executor.ray_address is None:
        check_machines(config, config.executor.machines)


def check_machines(config: RunConfig, machines: int) -> None:
    """Check that a cluster has the failure domains that a run asks for.

    Args:
        machines: machines of the cluster, as far as they are known.

    Raises:
        ConfigError: it has not.
    """
    standby = build_policy("recovery", config.pipeline.recovery).takes_standbys()
    if standby and config.executor.ray_address is not None and machines < 2:
        raise ConfigError(
            f"key 'pipeline.recovery.standby': found it on a cluster of {machines} machine, expected two at least: nobody "
            "stands in for the only one"
        )
    if PEER in config.checkpoint.domains and machines < 2:
        raise ConfigError(
            f"{_WHERE}: found '{PEER}' on {machines} machine, which is the only failure domain, expected two at least: set "
            "executor.machines, or join a cluster with --ray-address"
        )
