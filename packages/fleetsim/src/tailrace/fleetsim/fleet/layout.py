"""Which devices do what: the trainer's, and those of each pool of replicas. What cannot be is refused with what would fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailrace.contracts import expected_one_of
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.config import FleetConfig, RolloutFleet
from tailrace.fleetsim.hardware import Device, ModelShape, find_device, model


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """One pool of replicas.

    Args:
        device: its kind of devices, with what the configuration says of the engine on them.
        gpus: devices of all its replicas.
        table: its table of the configuration.
        where: the key of that table, for messages.
        name: of one of several; empty where all replicas are alike.
    """

    device: Device
    gpus: int
    table: RolloutFleet
    where: str
    name: str = ""

    @property
    def tp(self) -> int:
        """Devices of one replica."""
        return self.table.tensor_parallel

    @property
    def replicas(self) -> int:
        """How many replicas it has."""
        return self.gpus // self.tp

    @property
    def nodes(self) -> int:
        """Machines with at least one of its devices."""
        return max(1, -(-self.gpus // self.device.gpus_per_node))

    @property
    def hybrid(self) -> bool:
        """Whether it is marked as standing on the trainer's devices, unlike others."""
        return self.table.hybrid


@dataclass(frozen=True, slots=True)
class FleetLayout:
    """A model's trainer and its replicas.

    Args:
        pools: of the replicas; one where all are alike.
        colocated: trainer and replicas use the same devices in turn: all of them, or those of the hybrid pool.
    """

    model: ModelShape
    trainer: Device
    trainer_gpus: int
    pools: tuple[PoolLayout, ...]
    colocated: bool

    @property
    def replicas(self) -> int:
        """Replicas of all pools."""
        return sum(pool.replicas for pool in self.pools)

    @property
    def rollout_gpus(self) -> int:
        """Devices that generate."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def gpus(self) -> int:
        """Devices in all."""
        return self.rollout_gpus if self.colocated else self.rollout_gpus + self.trainer_gpus

    @property
    def kinds(self) -> dict[str, Device]:
        """Kinds of devices by name."""
        return {self.trainer.name: self.trainer, **{pool.device.name: pool.device for pool in self.pools}}

    @property
    def counts(self) -> dict[str, int]:
        """Number of devices of each kind."""
        counts = dict.fromkeys(self.kinds, 0)
        for pool in self.pools:
            counts[pool.device.name] += pool.gpus
        if not self.colocated:
            counts[self.trainer.name] += self.trainer_gpus
        return counts

    def describe(self) -> str:
        """The fleet in words."""
        if self.colocated and len(self.pools) == 1:
            pool = self.pools[0]
            return f"{self.model.name} on {self.gpus} x {pool.device.name}, trainer and {_replicas(pool)} in turn"
        generating = [
            f"{pool.gpus} x {pool.device.name} generate{f' at {pool.table.site}' if pool.table.site else ''} "
            f"({_replicas(pool)}{', in turn with the trainer' if pool.hybrid else ''})"
            for pool in self.pools
        ]
        if self.colocated:
            return f"{self.model.name}: {', '.join(generating)}"
        return f"{self.model.name}: {self.trainer_gpus} x {self.trainer.name} train, {', '.join(generating)}"


def layout(table: FleetConfig) -> FleetLayout:
    """The layout that a table ``[fleet]`` describes.

    Raises:
        FleetError: it cannot be.
    """
    if table.model is None:
        raise FleetError(
            "table 'fleet': found neither 'model' nor 'profile', expected a model and devices to simulate, such as "
            'fleet.model="Qwen2.5-32B", or a machine that `tailrace profile` has measured'
        )
    trainer, colocated = table.trainer, table.placement == "colocated"
    first = table.rollout[0]
    for index, pool in enumerate(table.rollout):
        if pool.gpus is None:
            which = f"no 'rollout.{index}.gpus'" if len(table.rollout) > 1 else "no 'rollout.gpus'"
            raise FleetError(f"table 'fleet': found {which}, expected the devices that generate: at least 1")
    if trainer.gpus is None and not colocated:
        raise FleetError(
            "table 'fleet': found no 'trainer.gpus', expected the devices that train: at least 1, or "
            'fleet.placement="colocated", where both use all devices in turn'
        )
    shared = next((pool for pool in table.rollout if pool.hybrid), first)
    if colocated and trainer.gpus not in (None, shared.gpus):
        raise FleetError(
            f"table 'fleet': found trainer.gpus = {trainer.gpus} and rollout.gpus = {shared.gpus} colocated, expected the "
            "same devices: leave trainer.gpus out"
        )
    _check_sites(table)
    names = _names(table)
    pools = tuple(_pool(table, index, name) for index, name in enumerate(names))
    return FleetLayout(
        model=model(table.model),
        trainer=find_device(shared.device if colocated else trainer.device),
        trainer_gpus=pools[table.rollout.index(shared)].gpus if colocated or trainer.gpus is None else trainer.gpus,
        pools=pools,
        colocated=colocated,
    )


def _check_sites(table: FleetConfig) -> None:
    colocated, several = table.placement == "colocated", len(table.rollout) > 1
    if colocated and table.cross_datacenter:
        raise FleetError(
            "table 'fleet': found placement = 'colocated' and cross_datacenter = true, expected one of them"
        )
    hybrids = sum(pool.hybrid for pool in table.rollout)
    if hybrids and not colocated:
        raise FleetError(
            f"table 'fleet': found a table rollout with hybrid = true and placement = {table.placement!r}, expected "
            "'colocated': hybrids stand on the trainer's devices"
        )
    if colocated and several and hybrids != 1:
        raise FleetError(
            f"table 'fleet': found placement = 'colocated' and {len(table.rollout)} tables rollout, {hybrids} of them with "
            "hybrid = true, expected one table, or one that is hybrid: a trainer that shares devices needs them to be alike"
        )
    if table.cross_datacenter and table.weights == "global":
        raise FleetError(
            "table 'fleet': found weights = 'global' and cross_datacenter = true: a collective over devices cannot cross "
            "datacenters; expected weights = 'relays' or 'store'"
        )
    home = table.trainer.site
    if home in table.sites:
        raise FleetError(f"table 'fleet': found sites.{home}, where the trainer is, expected the links to other sites")
    for index, pool in enumerate(table.rollout):
        if _at_home(table, pool):
            continue
        key = f"rollout.{index}.site" if several else "rollout.site"
        if pool.site not in table.sites:
            known = [*([home] if home else []), *table.sites]
            expected = expected_one_of(pool.site, known) if known else "expected its link"
            raise FleetError(
                f"table 'fleet': found {key} = {pool.site!r}, {expected}: a site other than the trainer's has a table "
                f"fleet.sites.{pool.site}"
            )
        if colocated or table.cross_datacenter or table.weights == "global":
            clash = "placement = 'colocated'" if colocated else "cross_datacenter = true"
            clash = clash if colocated or table.cross_datacenter else "weights = 'global'"
            raise FleetError(
                f"table 'fleet': found {key} = {pool.site!r} and {clash}, expected replicas and trainer at one site, or "
                "weights = 'relays' or 'store' over the site's link"
            )


def _names(table: FleetConfig) -> list[str]:
    """The pools' names; a single empty one where all replicas are alike and at home."""
    if len(table.rollout) == 1 and _at_home(table, table.rollout[0]):
        return [""]
    found: list[str] = []
    for index, pool in enumerate(table.rollout):
        if pool.name in found and pool.name:
            raise FleetError(
                f"table 'fleet': found a second pool {pool.name!r} in rollout.{index}.name, expected a name for each"
            )
        name = pool.name or find_device(pool.device).name
        found.append(name if name not in found else f"{name}-{index}")
    return found


def _at_home(table: FleetConfig, pool: RolloutFleet) -> bool:
    return pool.site in ("", table.trainer.site)


def _pool(table: FleetConfig, index: int, name: str) -> PoolLayout:
    pool = table.rollout[index]
    where = f"rollout.{index}" if len(table.rollout) > 1 else "rollout"
    assert pool.gpus is not None
    replicas, over = divmod(pool.gpus, pool.tensor_parallel)
    if over or not replicas:
        lower = replicas * pool.tensor_parallel
        fitting = f"{lower} or {lower + pool.tensor_parallel}" if lower else str(pool.tensor_parallel)
        raise FleetError(
            f"table 'fleet': found {where}.gpus = {pool.gpus} for replicas of {where}.tensor_parallel = "
            f"{pool.tensor_parallel}, expected a multiple: {fitting}"
        )
    return PoolLayout(tuned(pool), pool.gpus, pool, where, name)


def tuned(table: RolloutFleet) -> Device:
    """The devices of replicas, with what a configuration says of the engine on them.

    Raises:
        FleetError: the device is not known.
    """
    kind = find_device(table.device)
    share = kind.prefill_flops / kind.peak_flops if table.prefill_mfu is None else table.prefill_mfu
    return replace(
        kind,
        cpu_s=kind.cpu_s + table.step_s,
        prefill_flops=share * kind.peak_flops,
        memory_share=kind.memory_share if table.memory_share is None else table.memory_share,
    )


def _replicas(pool: PoolLayout) -> str:
    return f"{pool.replicas} replicas of {pool.tp}" if pool.tp > 1 else f"{pool.replicas} replicas"
