"""Which relay each of verl's workers speaks to, and the chain of the relays."""

from __future__ import annotations

from typing import Any

from tailrace.paramserver.bridges.errors import BridgeStateInvalid

ADDRESS_VARIABLE = "TAILRACE_RELAY_ADDRESS"  # of a relay that runs on this host already


def relay_topology(
    actors: int, rollouts: int, metadata: list[dict[str, Any]]
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """A chain of the hosts' relays, the master's first, and for each worker the relay of its host.

    Args:
        actors: how many, first in `metadata`.
        rollouts: how many rollout workers, last in it.
        metadata: the results of all workers' `prepare`.

    Returns:
        Arguments of `init_process_group`, a list for each, for the actors and for the rollout workers.

    Raises:
        BridgeStateInvalid: there is no master, or a host has no relay.
    """
    if len(metadata) != actors + rollouts:
        raise BridgeStateInvalid(
            f"found metadata of {len(metadata)} workers, expected {actors} actors and {rollouts} rollout workers"
        )
    addresses: dict[str, str] = {}
    for worker in metadata:
        if worker["address"] is not None:
            addresses.setdefault(worker["host"], worker["address"])
    masters = [worker for worker in metadata[:actors] if worker["master"]]
    if len(masters) != 1:
        raise BridgeStateInvalid(f"found {len(masters)} masters among the actors, expected one")
    (master,) = masters
    hosts = dict.fromkeys([master["host"], *(worker["host"] for worker in metadata[actors:])])
    lacking = [host for host in hosts if host not in addresses]
    if lacking:
        raise BridgeStateInvalid(
            f"found no relay on the host {lacking[0]}, where one of its name runs that no worker of this run started; "
            f"stop it, give this run another name, or set {ADDRESS_VARIABLE}"
        )
    chain = [addresses[host] for host in hosts]

    def arguments(workers: list[dict[str, Any]], sends: bool) -> dict[str, list[Any]]:
        return {
            "address": [chain[0] if worker["master"] else addresses.get(worker["host"]) for worker in workers],
            "chain": [chain if worker["master"] else None for worker in workers],
            "sends": [sends] * len(workers),
            "version": [master["next"]] * len(workers),
        }

    return (
        arguments(metadata[:actors], sends=True),
        arguments(metadata[actors:], sends=False),
    )
