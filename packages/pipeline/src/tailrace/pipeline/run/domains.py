"""The number of places that fail apart from each other and hold a checkpoint: the trainer's disk, another machine's memory."""

from __future__ import annotations

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.pools import relay_count

DISK, PEER = "disk", "peer"
_KEY = "key 'checkpoint.domains'"


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
            f"{_KEY}: found {list(domains)}, expected '{DISK}', and '{PEER}' beside it for a second domain"
        )
    if PEER not in domains:
        return
    if config.executor.name != "ray":
        raise ConfigError(
            f"{_KEY} and 'executor.name': found '{PEER}' with {config.executor.name!r}, where all members share one machine: "
            "expected 'ray' on several"
        )
    if (relays := relay_count(config)) < 2:
        raise ConfigError(
            f"{_KEY} and 'relay.count': found '{PEER}' with {relays} relay, expected one on each of two machines or more: a "
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
    if PEER in config.checkpoint.domains and machines < 2:
        raise ConfigError(
            f"{_KEY}: found '{PEER}' on {machines} machine, which is the only failure domain, expected two at least: set "
            "executor.machines, or join a cluster with --ray-address"
        )
