"""Who stands on which device of which machine, as the hosts would place them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.fleetsim.errors import DoesNotFitError, FleetError
from tailrace.fleetsim.footprint.machines import Machines
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.device_shares import trainer_group
from tailrace.pipeline.run.pools import engine_options, ranker_gpus, tensor_parallel
from tailrace.runtime.executor.deployment import DATA, RANKER, RELAY, REPLICA, SCORER, TRAINER, rank_id

_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class StandingMember:
    """A rank of the trainer, a replica, or a scorer or ranker that has a device.

    Args:
        role, name: as the run calls it: ``trainer``, ``0.1``; ``replica``, ``r3``; ``scorer``, ``0``.
        devices: how many it takes; below 1 a share of one.
        pool: index of a replica's pool; None where all are alike.
        site: where it stands; empty for the trainer's site.
    """

    role: str
    name: str
    devices: float
    pool: int | None = None
    site: str = ""

    @property
    def spans(self) -> int:
        """Whole devices that it stands on."""
        return max(1, round(self.devices))


@dataclass(slots=True)
class DeviceSeat:
    """A device and who stands on it."""

    node: int
    index: int
    members: list[StandingMember] = field(default_factory=list)

    @property
    def taken(self) -> float:
        """The share of it that is taken."""
        return sum(min(1.0, member.devices) for member in self.members)


@dataclass(frozen=True, slots=True)
class Standing:
    """Every device of all machines, and the members without one, by machine.

    Args:
        seats: by machine and index.
        ranks, replicas: the members.
        nodes: the machine of each member, of scorer and ranker with a device too; the first one of those without a device.
    """

    seats: tuple[DeviceSeat, ...]
    ranks: tuple[StandingMember, ...]
    replicas: tuple[StandingMember, ...]
    nodes: dict[StandingMember, int]

    def on(self, node: int) -> tuple[StandingMember, ...]:
        """Ranks and replicas of a machine."""
        return tuple(member for member in (*self.ranks, *self.replicas) if self.nodes[member] == node)

    def by_machine(self, config: RunConfig, machines: Machines) -> list[tuple[dict[int, list[str]], list[str]]]:
        """For each machine who stands on each of its devices, by the device's index, and who stands there without one.

        Members are told as ``trainer 0.1``; a share of a device stands behind them in brackets.
        """
        found: list[tuple[dict[int, list[str]], list[str]]] = [({}, []) for _ in range(machines.nodes)]
        for seat in self.seats:
            found[seat.node][0][seat.index] = [
                f"{member.role} {member.name}{f' ({member.devices:g})' if member.devices < 1 else ''}"
                for member in seat.members
            ]
        for member in (*self.ranks, *self.replicas):
            if not member.devices:
                found[self.nodes[member]][1].append(f"{member.role} {member.name}")
        number = 0
        for site, count in {"": config.relay.count, **config.relay.sites}.items():
            nodes = machines.nodes_at(site) if machines.device is not None else range(1)
            for place in range(count):
                found[nodes[place % len(nodes)]][1].append(f"{RELAY} {number}")
                number += 1
        beside = {DATA: True, SCORER: not config.executor.scorer_gpus, RANKER: config.ranker is not None}
        beside[RANKER] = beside[RANKER] and not ranker_gpus(config)
        found[0][1].extend(role for role, there in beside.items() if there)
        return found


def ranks_and_replicas(config: RunConfig) -> tuple[tuple[StandingMember, ...], tuple[StandingMember, ...]]:
    """The members of a configuration that may need devices, in the order in which they are placed."""
    executor, rollout = config.executor, config.rollout
    ranks = tuple(
        StandingMember(TRAINER, rank_id("0", rank), executor.trainer_gpus) for rank in range(config.trainer.processes)
    )
    if not rollout.pools:
        alike = range(rollout.replicas)
        return ranks, tuple(StandingMember(REPLICA, f"r{number}", executor.replica_gpus) for number in alike)
    own, found = tensor_parallel(rollout.options), list[StandingMember]()
    for place, pool in enumerate(rollout.pools):
        each = executor.replica_gpus * tensor_parallel(engine_options(config, pool)) / own
        first = len(found)
        found += [StandingMember(REPLICA, f"r{first + n}", each, place, pool.site) for n in range(pool.count)]
    return ranks, tuple(found)


def stand(config: RunConfig, machines: Machines) -> Standing:
    """Place all members.

    Ranks stand as `executor.placement` says, replicas beside the ranks with which they share a device, else on the first
    machine that has all their devices: an engine does not span machines.

    Raises:
        DoesNotFitError: there are too few devices, or no machine has as many as one engine spans.
        FleetError: a site has no machines, or a pool asks for another kind of device than its site has.
    """
    _check_sites(config, machines)
    ranks, replicas = ranks_and_replicas(config)
    seats: list[DeviceSeat] = []
    first = 0
    for site in machines.sites:
        per = site.per_node
        seats += [DeviceSeat(first + number // per, number % per) for number in range(site.devices)]
        first += site.here
        here = [one for one in replicas if machines.device is None or one.site == site.site]
        asked = sum(one.devices for one in here)
        if not site.site:
            asked += sum(rank.devices for rank in ranks) + config.executor.scorer_gpus + ranker_gpus(config)
        if asked > site.devices + _ROUNDING:
            who = f"{len(here)} replicas" if site.site else f"{len(ranks)} ranks, {len(here)} replicas"
            raise DoesNotFitError(
                f"keys 'executor.trainer_gpus' and 'executor.replica_gpus': found {asked:g} devices asked for ({who}), "
                f"expected at most {site.devices}, those of {site}: {asked - site.devices:g} are missing"
            )
    nodes: dict[StandingMember, int] = {}
    group = trainer_group(config)
    homes: dict[int, DeviceSeat] = {}  # of each part of the trainer's group
    held: dict[tuple[int, int], float] = {}  # of each device by such parts, for all who are to stand there
    for place, rank in enumerate(ranks):
        bundle = group.get((TRAINER, rank.name))
        part = min(1.0, rank.devices if bundle is None else bundle.parts[place])
        free = _order(config.executor.placement, place, _at_site(rank, seats, machines), machines)
        free = [seat for seat in free if held.get((seat.node, seat.index), 0.0) + part <= 1 + _ROUNDING]
        nodes[rank] = _take(rank, free, config, machines)
        if rank.devices:
            home = homes[place] = next(seat for seat in seats if rank in seat.members)
            held[home.node, home.index] = held.get((home.node, home.index), 0.0) + part
    others = ((SCORER, config.executor.scorer_gpus), (RANKER, ranker_gpus(config)))
    for member in (*replicas, *(StandingMember(role, "0", devices) for role, devices in others if devices)):
        bundle = group.get((member.role, member.name))
        beside = [homes[bundle.index]] if bundle is not None and bundle.index in homes else None
        nodes[member] = _take(member, beside or _at_site(member, seats, machines), config, machines)
    return Standing(tuple(seats), ranks, replicas, nodes)


def _order(placement: str, place: int, seats: list[DeviceSeat], machines: Machines) -> list[DeviceSeat]:
    """The seats of a rank in the order in which they are tried."""
    if machines.device is None:
        return seats  # on how many machines they are is not known
    if placement == "strict-pack":
        return [seat for seat in seats if seat.node == 0]
    if placement == "strict-spread":
        return [seat for seat in seats if seat.node == place]
    if placement == "spread":
        return sorted(seats, key=lambda seat: ((seat.node - place) % machines.here, seat.index))
    return seats


def _check_sites(config: RunConfig, machines: Machines) -> None:
    """Check that machines are named for every site of the run, with the kind of device that its pools ask for."""
    if machines.device is None:
        return
    there = {site.site: site for site in machines.sites}
    places = {f"rollout.pools.{place}.site": pool.site for place, pool in enumerate(config.rollout.pools)}
    for key, asked in (*places.items(), *(("relay.sites", site) for site in config.relay.sites)):
        if asked not in there:
            raise FleetError(
                f"key {key!r}: found {asked!r}, and no machines of it among {machines}, expected them too: --devices "
                f"{machines.devices}x{machines.device.name},8x{machines.device.name}@{asked}"
            )
    for place, pool in enumerate(config.rollout.pools):
        kind = there[pool.site].device
        if kind is not None and pool.device not in ("", kind.name):
            raise FleetError(
                f"key 'rollout.pools.{place}.device': found {pool.device!r} among {there[pool.site]}, expected "
                f"{kind.name!r}, or none: a run is counted for one kind of device at each site"
            )


def _at_site(member: StandingMember, seats: list[DeviceSeat], machines: Machines) -> list[DeviceSeat]:
    """The seats of a member's site; all where sites are not known."""
    if machines.device is None:
        return seats
    nodes = machines.nodes_at(member.site)
    return [seat for seat in seats if seat.node in nodes]


def _take(member: StandingMember, seats: list[DeviceSeat], config: RunConfig, machines: Machines) -> int:
    """Give a member its devices, all on one machine. Returns the machine."""
    if not member.devices:
        return seats[0].node if seats else 0
    share = min(1.0, member.devices)
    by_node: dict[int, list[DeviceSeat]] = {}
    for seat in seats:
        if seat.taken + share <= 1 + _ROUNDING:
            by_node.setdefault(seat.node, []).append(seat)
    for node, free in by_node.items():
        if len(free) >= member.spans:
            for seat in free[: member.spans]:
                seat.members.append(member)
            return node
    where = f" with executor.placement = {config.executor.placement!r}" if member.role == TRAINER else ""
    raise DoesNotFitError(
        f"keys 'executor.{member.role}_gpus': found no machine with {member.devices:g} free devices for {member.role} "
        f"{member.name}{where}, expected one among {machines}: devices that are free stand on several machines, or there are "
        "none"
    )
