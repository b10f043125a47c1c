"""Who stands on which device of which machine, as the hosts would place them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.fleetsim.errors import DoesNotFitError, FleetError
from tailrace.fleetsim.footprint.machines import Machines
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.device_shares import trainer_group
from tailrace.pipeline.run.pools import engine_options, ranker_gpus, tensor_parallel
from tailrace.runtime.executor.deployment import REPLICA, TRAINER, rank_id

_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class StandingMember:
    """A rank of the trainer, or a replica.

    Args:
        role, name: as the run calls it: ``trainer``, ``0/1``; ``replica``, ``r3``.
        devices: how many it takes; below 1 a share of one.
        pool: index of a replica's pool; None where all are alike.
    """

    role: str
    name: str
    devices: float
    pool: int | None = None

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
        nodes: the machine of each member; the first one of those without a device.
    """

    seats: tuple[DeviceSeat, ...]
    ranks: tuple[StandingMember, ...]
    replicas: tuple[StandingMember, ...]
    nodes: dict[StandingMember, int]

    def on(self, node: int) -> tuple[StandingMember, ...]:
        """Ranks and replicas of a machine."""
        return tuple(member for member in (*self.ranks, *self.replicas) if self.nodes[member] == node)


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
        found += [StandingMember(REPLICA, f"r{len(found) + number}", each, place) for number in range(pool.count)]
    return ranks, tuple(found)


def stand(config: RunConfig, machines: Machines) -> Standing:
    """Place all members.

    Ranks stand as `executor.placement` says, replicas beside the ranks with which they share a device, else on the first
    machine that has all their devices: an engine does not span machines.

    Raises:
        DoesNotFitError: there are too few devices, or no machine has as many as one engine spans.
        FleetError: a pool asks for another kind of device.
    """
    for place, pool in enumerate(config.rollout.pools):
        if machines.device is not None and pool.device not in ("", machines.device.name):
            raise FleetError(
                f"key 'rollout.pools.{place}.device': found {pool.device!r} among {machines}, expected "
                f"{machines.device.name!r}, or none: a run is counted for one kind of device at a time"
            )
    ranks, replicas = ranks_and_replicas(config)
    per = machines.per_node
    seats = [DeviceSeat(number // per, number % per) for number in range(machines.devices)] if per else []
    asked = sum(member.devices for member in (*ranks, *replicas)) + config.executor.scorer_gpus + ranker_gpus(config)
    if asked > machines.devices + _ROUNDING:
        raise DoesNotFitError(
            f"keys 'executor.trainer_gpus' and 'executor.replica_gpus': found {asked:g} devices asked for "
            f"({len(ranks)} ranks, {len(replicas)} replicas), expected at most {machines.devices}, those of {machines}: "
            f"{asked - machines.devices:g} are missing"
        )
    nodes: dict[StandingMember, int] = {}
    group = trainer_group(config)
    homes: dict[int, DeviceSeat] = {}  # of each part of the trainer's group
    for place, rank in enumerate(ranks):
        free = _order(config.executor.placement, place, seats, machines)
        nodes[rank] = _take(rank, free, config, machines)
        if rank.devices:
            homes[place] = next(seat for seat in seats if rank in seat.members)
    for replica in replicas:
        bundle = group.get((REPLICA, replica.name))
        beside = [homes[bundle.index]] if bundle is not None and bundle.index in homes else seats
        nodes[replica] = _take(replica, beside, config, machines)
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
        return sorted(seats, key=lambda seat: ((seat.node - place) % machines.nodes, seat.index))
    return seats


def _take(member: StandingMember, seats: list[DeviceSeat], config: RunConfig, machines: Machines) -> int:
    """Give a member its devices, all on one machine. Returns the machine."""
    if not member.devices:
        return 0
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
