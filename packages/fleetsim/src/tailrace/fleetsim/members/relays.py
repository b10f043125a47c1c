"""Modelled relays, and replicas that offer what they serve: which versions may be pulled, and when they reach a machine.

A version is complete on the first relay after the trainer's stall. That relay serves it while the chain forwards it. A replica
that asks for a version which has not reached its machine waits for it, then loads it over PCIe (Laminar, section 4.2). Where
replicas are peers, it first comes over the network from the one source that the replica was told of (RobustRL, section 5.2.1).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from tailrace.contracts import Publish
from tailrace.fleetsim.fleet.pools import WeightCosts
from tailrace.fleetsim.host.host import RoleModel, VirtualMember
from tailrace.fleetsim.host.recorder import Totals
from tailrace.fleetsim.host.world import World
from tailrace.runtime.executor.doors import Ready

KEPT = 64  # newest versions whose times of publishing a relay remembers


class Relay(RoleModel):
    """One relay. `holds` has its versions, each with the time at which it was published."""

    def __init__(self, relays: Relays, id_: str) -> None:
        self.id, self.address = id_, ""
        self.holds: dict[int, float] = {}
        self.alive = False
        self._relays = relays

    def begin(self, member: VirtualMember) -> None:
        self.holds.clear()
        self.address = f"relay-{self.id}.{member.incarnation}"

    def starts_s(self, incarnation: int) -> float:
        return self._relays.world.fleet.delays.relay_restart_s if incarnation > 1 else 0.0

    def ready(self) -> Ready:
        self.alive = True
        return Ready(address=self.address)

    def die(self) -> None:
        """End the relay, with its versions."""
        self.alive = False
        self.holds.clear()

    def hang(self) -> None:
        self.alive = False


OFFERED = 2  # versions that a replica holds for others


class Relays:
    """All relays of a simulation.

    `waited_s` is the total time that replicas spent pulling, `pulls` the number of pulls. `offered` has, by the address of
    each replica that lives and is a peer, the versions that it holds for others.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.relays: dict[str, Relay] = {}
        self.offered: dict[str, list[int]] = {}
        self.published_s: dict[int, float] = {}
        self.waited_s = 0.0
        self.pulls = 0
        world.meters.append(self)

    def relay(self, id_: str) -> Relay:
        """The relay of a name."""
        return self.relays.setdefault(id_, Relay(self, id_))

    def published(self, command: Publish, *, sealed: bool = False) -> bool:
        """Publish a version. Returns whether a relay took it.

        Args:
            sealed: it travels to the relays, but nobody may pull it before it is published unsealed.
        """
        world, taken = self.world, False
        for relay in self._alive(command.relays.values()):
            relay.holds.setdefault(command.version, world.time.now())
            taken = True
        if taken and not sealed:
            self.published_s.setdefault(command.version, world.time.now())
            for known in (self.published_s, *(relay.holds for relay in self.relays.values())):
                for version in [version for version in known if version < command.version - KEPT]:
                    del known[version]
        return taken

    def retire(self, versions: Iterable[int]) -> None:
        """Forget versions that a trainer left sealed: its successor retires them."""
        for relay in self.relays.values():
            for version in versions:
                relay.holds.pop(version, None)

    def offers(self, address: str, version: int) -> None:
        """A replica that is a peer serves a version, and may be pulled from."""
        held = self.offered[address]
        held.append(version)
        del held[:-OFFERED]

    def pull_s(self, version: int, sources: Sequence[str], weights: WeightCosts) -> float:
        """Seconds of a pull that begins now; an old version that no relay has comes from its checkpoint.

        Args:
            version: the version.
            sources: addresses of the relays that the replica was told of.
            weights: what moving a version to the replica's pool costs.
        """
        now = self.world.time.now()
        held = [at for at in self._held(sources, version).values() if at is not None]
        missing_s = max(0.0, min(held) + weights.broadcast_s - now) if held else 0.0
        hop_s = weights.peer_s if self.world.fleet.spec.peers else 0.0
        takes_s = missing_s + hop_s + weights.pull_s
        self.waited_s += takes_s
        self.pulls += 1
        return takes_s

    def source(self, version: int, sources: Sequence[str]) -> str:
        """The first of these that has a version; empty if none has."""
        held = self._held(sources, version)
        return next((address for address in sources if held.get(address) is not None), "")

    def refuses(self, version: int, sources: Sequence[str]) -> str | None:
        """Why a pull that ends now fails; None if it succeeds."""
        held = self._held(sources, version)
        if not held:
            return "none of the relays that it was told of answers"
        if any(at is not None for at in held.values()) and version not in self.published_s:
            return "the version is sealed"
        if version in self.world.disk or any(at is not None for at in held.values()):
            return None
        return None if version not in self.published_s else "no relay and no checkpoint holds it"

    def _held(self, sources: Sequence[str], version: int) -> Mapping[str, float | None]:
        relays = {relay.address: relay.holds.get(version) for relay in self._alive(sources)}
        peers = {address: self.offered[address] for address in sources if address in self.offered}
        return relays | {address: -math.inf if version in held else None for address, held in peers.items()}

    def _alive(self, addresses: Collection[str]) -> list[Relay]:
        return [relay for relay in self.relays.values() if relay.alive and relay.address in addresses]

    def add_to(self, totals: Totals) -> None:
        totals.pulling_s, totals.pulls = self.waited_s, self.pulls
