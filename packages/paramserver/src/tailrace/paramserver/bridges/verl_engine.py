"""What verl's actors and rollout workers do to move weights over relays: the engine, without verl itself.

    consumes     `send_weights` and `receive_weights` calls, one of each for every update
    waits for    the version of this update, on a thread of its own
    unblocked by the relay of this host, or another of the chain if that one dies or is cut off

There is one relay for each host: that of the trainer's rank 0 is the master, and a chain leads from it over the hosts of
the rollout workers. The first worker of a host that is asked to `prepare` starts the relay and keeps it; a relay that runs
already is taken from TAILRACE_RELAY_ADDRESS. Version numbers only grow: an update is the newest of its number, whatever
step it belongs to.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from tailrace.paramserver.clients.lease_view import WeightLease
from tailrace.paramserver.clients.publisher import Publisher
from tailrace.paramserver.clients.reader import RelayReader, lease_version
from tailrace.paramserver.errors import (
    BridgeStateInvalid,
    ParamServerError,
    RelayNameTaken,
    RelayUnreachable,
    VersionNotYet,
)
from tailrace.paramserver.group.relay_calls import RelayStatus, relay_status, set_chain
from tailrace.paramserver.relays.process import RelayProcess
from tailrace.paramserver.wire.authentication import TOKEN_VARIABLE

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
            "chain": [chain if worker["master"] or not sends else None for worker in workers],
            "sends": [sends] * len(workers),
            "version": [master["next"]] * len(workers),
        }

    return (
        arguments(metadata[:actors], sends=True),
        arguments(metadata[actors:], sends=False),
    )


BACKEND = "tailrace"


class RelayCheckpointEngine:
    """A checkpoint engine of verl: actors publish, rollout workers read from the relay of their host.

    Args:
        bucket_size: verl passes it; relays move chunks of their own size, so it sets nothing here.
        is_master: verl passes True on the trainer's rank 0, which publishes, False on its other ranks, which need no
            relay, and nothing on rollout workers.
        token: shared secret of the relays; None takes it from TAILRACE_RELAY_TOKEN.
        name: the relays' name on their hosts; it must differ between runs on one host.
        host: address that this worker's relay listens on; None takes the node's from Ray.
        rollout_dtype: name of the dtype to cast floating-point weights to before they are published; None sends as is.
        device: the device for received weights; None leaves them in the relay's memory, as views without a copy. Take "cuda"
            where verl hands weights larger than its bucket to vLLM, which it does from GPU memory only.
        timeout_s: how long to wait for an update's version.
        patience_s: how long a worker's relay may receive nothing of it before the worker reads another relay that has it.
        hold_s: how long a relay keeps a version for a worker, from `receive_weights` to `finalize`.
    """

    wire_format = "named_tensors"

    def __init__(
        self,
        bucket_size: int,
        is_master: bool | None = None,
        *,
        token: str | None = None,
        name: str = "verl",
        host: str | None = None,
        rollout_dtype: str | None = None,
        device: str | None = None,
        timeout_s: float = 600.0,
        patience_s: float = 30.0,
        hold_s: float = 600.0,
    ) -> None:
        token = token or os.environ.get(TOKEN_VARIABLE)
        if not token:
            raise BridgeStateInvalid(f"found no token for the relays; set {TOKEN_VARIABLE} on every worker")
        self.bucket_size, self.is_master = bucket_size, bool(is_master)
        self._needs_relay = is_master is not False
        self._token, self._name, self._host = token, name, host
        self._rollout_dtype, self._device = rollout_dtype, device
        self._timeout_s, self._patience_s, self._hold_s = timeout_s, patience_s, hold_s
        self._relay: RelayProcess | None = None
        self._publisher: Publisher | None = None
        self._reader: RelayReader | None = None
        self._relays: list[str] = []  # that a rollout worker may read, its host's first
        self._held = ExitStack()
        self._sends, self._next = False, -1

    def prepare(self) -> dict[str, Any]:
        """Make sure that this host has a relay, and say where.

        Returns:
            `host`, `address` (None if another worker of this host knows it, or this one needs none), `master` and `next`,
            the number of the next version, which counts on the master.

        Raises:
            RelayStartFailed, PortInUse: the relay does not start.
        """
        host = self._host or _node_address()
        address = os.environ.get(ADDRESS_VARIABLE) or (self._own_relay(host) if self._needs_relay else None)
        following = self._next + 1
        if self.is_master and address is not None:  # a relay that outlived another run may hold its versions
            with RelayReader(address, token=self._token) as reader:
                following = max([following, *(version + 1 for version in reader.versions())])
        return {"host": host, "address": address, "next": following, "master": self.is_master}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """A chain of the hosts' relays, the master's first, and for each worker the relay of its host.

        Raises:
            BridgeStateInvalid: there is no master, or a host has no relay.
        """
        return relay_topology(actor_wg_world_size, rollout_world_size, metadata)

    def init_process_group(self, *, address: str | None, chain: list[str] | None, sends: bool, version: int) -> None:
        """Take what `build_topology` decided for this worker; the master links the relays.

        Raises:
            ParamServerError: a relay does not answer.
        """
        self._sends, self._next = sends, version
        if sends and chain is not None:
            set_chain(chain, token=self._token)
            if self._publisher is None or self._publisher.address != chain[0]:
                self._close_publisher()
                self._publisher = Publisher(chain[0], token=self._token)
        if not sends and address is not None:
            self._read([address, *(other for other in chain or () if other != address)])

    async def send_weights(
        self, weights: Iterable[tuple[str, Any]] | AsyncIterator[tuple[str, Any]], global_steps: int | None = None
    ) -> dict[str, float]:
        """Publish, on the master; the other actors only take part in gathering each tensor.

        Returns when the weights were copied: they travel while the trainer trains on.

        Returns:
            On the master `tailrace/stall_s` and `tailrace/version`, for verl's metrics.

        Raises:
            BridgeStateInvalid: before `init_process_group`, or on a rollout worker.
            ManifestInvalid: a tensor cannot be published.
        """
        if not self._sends:
            raise BridgeStateInvalid("send_weights belongs to an actor, after init_process_group")
        if hasattr(weights, "__aiter__"):
            weights = _pulled(weights, asyncio.get_running_loop())
            return await asyncio.to_thread(self._publish, weights, global_steps)
        # On the loop's own thread: gathering a tensor is a collective on this thread's device and stream.
        return self._publish(weights, global_steps)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, Any]]:
        """Wait for the version of this update and yield its tensors under all the names that were sent.

        Tensors stay valid until `finalize`. If this host's relay dies or is cut off, they come from another relay of the chain.

        Raises:
            BridgeStateInvalid: before `init_process_group`, or on an actor.
            VersionNotYet: the version did not arrive on any relay within `timeout_s`.
            ParamServerError: what `RelayReader.lease` raises.
        """
        weights = await asyncio.to_thread(self._lease, self._version(global_steps))
        for name, tensor in self._tensors(weights):
            yield name, tensor

    async def get_weights(self) -> AsyncIterator[tuple[str, Any]]:
        """The newest version on this host's relay, whenever a rollout worker likes, without the trainer.

        Tensors stay valid until `finalize`.

        Raises:
            BridgeStateInvalid, VersionNotYet, ParamServerError: as for `receive_weights`.
        """
        weights = await asyncio.to_thread(self._lease, None)
        for name, tensor in self._tensors(weights):
            yield name, tensor

    def finalize(self) -> None:
        """End an update: received tensors are given back. Relays and connections stay for the next one.

        Raises:
            LeaseExpired: the weights were held longer than `hold_s` and may be a mixture.
        """
        held, self._held = self._held, ExitStack()
        held.close()

    def close(self) -> None:
        """Give everything back, the relay that this worker started too."""
        try:
            self.finalize()
        finally:
            self._close_publisher()
            self._close_reader()
            if self._relay is not None:
                self._relay.close()
                self._relay = None

    def _own_relay(self, host: str) -> str | None:
        if self._relay is not None and self._relay.alive():
            return self._relay.address
        try:
            self._relay = RelayProcess.start(f"{self._name}-{host}", host=host, token=self._token)
        except RelayNameTaken:
            return None  # another worker of this host was first
        return self._relay.address

    def _version(self, global_steps: int | None) -> int:
        # Senders and receivers come to the same number, and no number comes twice.
        return max(self._next, global_steps or 0)

    def _publish(self, weights: Iterable[tuple[str, Any]], global_steps: int | None) -> dict[str, float]:
        version = self._version(global_steps)
        if self._publisher is None:
            for _ in weights:
                pass
            return {}
        stall_s = self._publisher.publish(version, self._cast(weights))
        self._next = version
        return {"tailrace/stall_s": stall_s, "tailrace/version": float(version)}

    def _cast(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        import torch

        dtype = None if self._rollout_dtype is None else getattr(torch, self._rollout_dtype.removeprefix("torch."))
        for name, tensor in weights:
            yield name, tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)

    def _read(self, relays: list[str]) -> None:
        """Read the first of these relays from now on, and the others in their order where it fails."""
        if self._reader is None or self._reader.address != relays[0] or self._relays != relays:
            self._close_reader()
            self._reader = RelayReader(relays, token=self._token)
        self._relays = relays

    def _lease(self, version: int | None) -> WeightLease:
        self.finalize()
        deadline, before = time.monotonic() + self._timeout_s, None
        while True:
            if self._reader is None:
                raise BridgeStateInvalid("receiving weights belongs to a rollout worker, after init_process_group")
            remaining = max(0.0, deadline - time.monotonic())
            last = version is None or remaining <= self._patience_s
            wait_s = remaining if last else self._patience_s
            try:
                leased = lease_version(self._reader, version, timeout_s=wait_s, hold_s=self._hold_s)
                return self._held.enter_context(leased)
            except VersionNotYet as error:
                if last:
                    raise VersionNotYet(
                        f"version {'of any number' if version is None else version} did not become visible on "
                        f"{', '.join(self._relays)} in {self._timeout_s:.3g} s: {error}"
                    ) from error
            # A relay lives that gets nothing, if the one before it in the chain has died; or the trainer still gathers.
            own = self._status(self._reader.address)
            progress = own.receiving.get(str(version)) if own is not None else None
            if progress is None or progress == before:
                for relay in self._relays:
                    status = self._status(relay) if relay != self._reader.address else None
                    if status is not None and version in status.versions:
                        self._read([relay, *(other for other in self._relays if other != relay)])
                        break
            before = progress

    def _status(self, relay: str) -> RelayStatus | None:
        """A relay's account of itself; None if it is dead."""
        try:
            return relay_status(relay, token=self._token)
        except ParamServerError:
            return None

    def _tensors(self, weights: WeightLease) -> Iterator[tuple[str, Any]]:
        for name, stored in [(name, name) for name in weights] + list(weights.tied.items()):
            tensor = weights[stored]
            yield name, tensor if self._device is None else tensor.to(self._device)

    def _close_publisher(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _pulled(weights: Any, loop: asyncio.AbstractEventLoop) -> Iterator[tuple[str, Any]]:
    """An asynchronous iterator, pulled from a thread beside its loop."""
    iterator = aiter(weights)

    async def following() -> tuple[str, Any] | None:
        return await anext(iterator, None)

    while (item := asyncio.run_coroutine_threadsafe(following(), loop).result()) is not None:
        yield item


def _node_address() -> str:
    try:
        from ray.util import get_node_ip_address
    except ImportError as error:
        raise RelayUnreachable("cannot ask Ray for this node's address; set engine_kwargs.tailrace.host") from error
    return str(get_node_ip_address()).strip("[]")
