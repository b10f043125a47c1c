"""The search space of `tailrace plan`: splits of the devices, and one policy on each axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tailrace.fleetsim.config import FleetConfig
from tailrace.fleetsim.cost import kv_capacity_tokens
from tailrace.fleetsim.errors import DoesNotFitError, FleetError
from tailrace.fleetsim.hardware import find_device, model

MOST_SPLITS = 15  # of one tensor parallelism: nodes are merged into larger steps beyond that


@dataclass(frozen=True, slots=True)
class PoolShare:
    """What a split uses of one pool of replicas.

    Args:
        device: its kind of devices.
        site: its site; empty at the trainer's.
        gpus: devices.
        tensor_parallel: devices of a replica.
        table: its table of the configuration.
    """

    device: str
    site: str
    gpus: int
    tensor_parallel: int
    table: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def settings(self) -> dict[str, Any]:
        """Its table of a configuration."""
        return {**self.table, "gpus": self.gpus, "tensor_parallel": self.tensor_parallel}

    def __str__(self) -> str:
        return f"{self.gpus} {self.device}{f' at {self.site}' if self.site else ''}, TP {self.tensor_parallel}"


@dataclass(frozen=True, slots=True)
class Split:
    """The numbers of devices of trainer and replicas. `trainer` is 0 if both use all devices in turn.

    `pools` is what is used of each pool, where replicas are unequal or at another site; empty where all are alike.
    """

    trainer: int
    rollout: int
    tensor_parallel: int
    pools: tuple[PoolShare, ...] = ()

    @property
    def colocated(self) -> bool:
        """Whether trainer and replicas use the same devices."""
        return self.trainer == 0

    @property
    def replicas(self) -> int:
        """Replicas of all pools."""
        if self.pools:
            return sum(pool.gpus // pool.tensor_parallel for pool in self.pools)
        return self.rollout // self.tensor_parallel

    def settings(self) -> dict[str, Any]:
        """This split as a layer of a configuration."""
        if self.pools:
            pools = [pool.settings() for pool in self.pools]
            return {"fleet": {"placement": "split", "trainer": {"gpus": self.trainer}, "rollout": pools}}
        rollout = {"gpus": self.rollout, "tensor_parallel": self.tensor_parallel}
        if self.colocated:
            return {"fleet": {"placement": "colocated", "trainer": {"gpus": self.rollout}, "rollout": rollout}}
        return {"fleet": {"placement": "split", "trainer": {"gpus": self.trainer}, "rollout": rollout}}

    def __str__(self) -> str:
        if self.pools:
            return " + ".join([str(self.trainer), *map(str, self.pools)])
        if self.colocated:
            return f"{self.rollout} colocated, TP {self.tensor_parallel}"
        return f"{self.trainer} + {self.rollout}, TP {self.tensor_parallel}"


@dataclass(frozen=True, slots=True)
class Mix:
    """One policy on each axis that the search varies.

    Args:
        guaranteed: the staleness that it keeps whatever happens; None if it is only measured.
        batches: groups that a replica is given at once, in shares of an even split of the batch.
    """

    admission: tuple[str, int | None]
    sync: str
    routing: str
    relocation: str
    training: str
    guaranteed: int | None
    batches: float = 1.0

    def settings(self, batch_groups: int, replicas: int, parts: int, *, collective: bool = True) -> dict[str, Any]:
        """The mix as a layer of a configuration.

        Args:
            batch_groups: groups of a batch.
            replicas: how many there are.
            parts: optimizer steps of a batch.
            collective: whether trainer and replicas could move weights in one collective, which no site's link carries.
        """
        name, bound = self.admission
        admission: dict[str, Any] = {"name": name} if bound is None else {"name": name, "bound": bound}
        training = {"name": self.training} if self.training == "full-batch" else {"name": self.training, "parts": parts}
        return {
            "pipeline": {
                "admission": admission,
                "sync": {"name": self.sync},
                "routing": {"name": self.routing},
                "relocation": {"name": self.relocation},
                "training": training,
                "prompts_per_replica": max(1, round(self.batches * batch_groups / replicas)),
            },
            "fleet": {"weights": "global" if self.sync == "barrier" and collective else "relays"},
        }

    def __str__(self) -> str:
        name, bound = self.admission
        admission = name if bound is None else f"{name}({bound})"
        share = "" if self.batches == 1.0 else f", {self.batches:g} batches in flight"
        return f"{admission}, {self.sync}, {self.routing}, {self.relocation}, {self.training}{share}"


def devices_of(table: FleetConfig) -> list[str]:
    """Names of the devices of the trainer and of every pool."""
    return [table.trainer.device, *(pool.device for pool in table.rollout)]


def splits(table: FleetConfig, gpus: int, *, node: int | None = None) -> list[Split]:
    """Splits of so many devices whose every part is a number of nodes, or of devices on less than three nodes.

    Raises:
        FleetError: none is possible; the message says why.
    """
    if table.model is None:
        raise FleetError("table 'fleet': found no 'model', expected one: what fits on a device depends on it")
    shape, kind = model(table.model), find_device(table.rollout[0].device)
    node = node or kind.gpus_per_node
    parallels = []
    for parallel in kind.parallel_sizes:
        try:
            tokens = kv_capacity_tokens(shape, kind, parallel)
        except FleetError:
            continue
        if tokens > 16_384:
            parallels.append(parallel)
    if not parallels:
        raise DoesNotFitError(f"{shape.name} fits on no number of {kind.name} that one replica can have")
    grain = node if gpus >= 3 * node else max(1, min(parallels))
    steps = max(1, gpus // grain // MOST_SPLITS)
    found = [
        Split(trainer, gpus - trainer, parallel)
        for parallel in parallels
        for trainer in range(grain * steps, gpus, grain * steps)
        if (gpus - trainer) % parallel == 0 and gpus - trainer >= parallel
    ]
    found += [Split(0, gpus, parallel) for parallel in parallels if gpus % parallel == 0]
    if not found:
        raise FleetError(f"found {gpus} GPUs for {shape.name}, expected at least {2 * min(parallels)}")
    return found


def mixes(bound: int) -> Iterator[Mix]:
    """Mixes that keep a staleness of at most `bound`, or may turn out to."""
    trainings = ("mini-batch", "dynamic-batch")
    for training in trainings:
        yield Mix(("on-policy", None), "barrier", "least-loaded", "none", training, 0)
        if bound >= 1:
            yield Mix(("one-step", None), "barrier", "least-loaded", "none", training, 1)
    for training in trainings:
        for relocation in ("none", "best-fit"):  # a replica takes a whole batch when it is idle: no routing to choose
            yield Mix(("bounded", bound), "on-idle", "least-loaded", relocation, training, bound, 2.0)
            for batches in (1.0, 2.0):
                yield Mix(("inherent", bound), "on-idle", "least-loaded", relocation, training, bound, batches)
        for sync, relocation, routing in product(
            ("when-useful", "interrupting"), ("none", "migration"), ("least-loaded", "marginal-throughput")
        ):
            yield Mix(("bounded", bound), sync, routing, relocation, training, bound, 2.0)
            yield Mix(("inherent", bound), sync, routing, relocation, training, bound, 2.0)
