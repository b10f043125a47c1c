"""The search space of `tailrace plan`: splits of the devices, and one policy on each axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tailrace.fleetsim.cost import kv_capacity_tokens
from tailrace.fleetsim.errors import DoesNotFitError, FleetError
from tailrace.fleetsim.fleet.config import FleetConfig, RolloutFleet, fleet_config
from tailrace.fleetsim.fleet.layout import layout
from tailrace.fleetsim.fleet.stage_times import NEVER, StageTimes
from tailrace.fleetsim.hardware import find_device, model
from tailrace.pipeline.config.models import RunConfig

Worth = Callable[[float, Mapping[str, int]], float]
"""How good an iteration of some seconds on devices of some kinds is: the less, the better."""
SIMULATED = 12
MOST = 8  # numbers of devices of each part that are tried: machines are merged into larger steps beyond that
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


def splits(table: FleetConfig, gpus: int) -> list[Split]:
    """Splits of so many devices whose every part is a number of nodes, or of devices on less than three nodes.

    Raises:
        FleetError: none is possible; the message says why.
    """
    if table.model is None:
        raise FleetError("table 'fleet': found no 'model', expected one: what fits on a device depends on it")
    shape, kind = model(table.model), find_device(table.rollout[0].device)
    node = kind.gpus_per_node
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


# Splits over pools of unequal devices and over sites: how many of each pool's devices generate, and how many train.
#
# the table's own numbers are what there is ──► every whole number of machines of each ──► time and price by the stages alone
#                                               ──► the few best are simulated, and then their neighbours


def over_pools(table: FleetConfig) -> bool:
    """Whether a plan is one over pools: there are several, or the only one is at another site than the trainer."""
    return len(table.rollout) > 1 or table.rollout[0].site not in ("", table.trainer.site)


class PoolSplits:
    """The splits of a configuration with pools, best first by their estimate.

    Args:
        config: the configuration, whose numbers of devices are the most of each part.
        gpus: most devices in all; None: all that there are.
        worth: what is best.

    Raises:
        FleetError: the table is wrong, or no split fits.
    """

    def __init__(self, config: RunConfig, gpus: int | None, worth: Worth) -> None:
        table = fleet_config(config.fleet)
        layout(table)  # a table that cannot be says so
        self._table = table
        raw = config.fleet["rollout"]
        self._raw: Sequence[Mapping[str, object]] = raw if isinstance(raw, list) else [raw]
        self._times = [StageTimes(config, pool=index) for index in range(len(table.rollout))]
        parts = [
            _counts(table.trainer.gpus or 0, find_device(table.trainer.device).gpus_per_node, 1, least=1),
            *(
                _counts(pool.gpus or 0, find_device(pool.device).gpus_per_node, min(times.sizes), least=0)
                for pool, times in zip(table.rollout, self._times, strict=True)
            ),
        ]
        found: list[tuple[float, tuple[int, ...]]] = []
        for counts in product(*parts):
            if sum(counts) <= (gpus or sum(counts)) and any(counts[1:]):
                seconds = self._iteration_s(counts)
                if seconds < NEVER:
                    found.append((worth(seconds, self._devices(counts)), counts))
        if not found:
            limit = f"{gpus} GPUs" if gpus is not None else "the devices of the table 'fleet'"
            raise FleetError(f"found no split of {limit} on which training and generation fit, expected more devices")
        self._parts = parts
        self._cells = {counts: self._split(counts) for _, counts in sorted(found)}

    @property
    def best(self) -> list[Split]:
        """The splits to simulate first."""
        return list(self._cells.values())[:SIMULATED]

    def near(self, split: Split) -> list[Split]:
        """A split and those that have one step more or fewer devices of one part."""
        at = next(counts for counts, known in self._cells.items() if known == split)
        found = [split]
        for place, part in enumerate(self._parts):
            index = part.index(at[place])
            for other in part[max(0, index - 1) : index + 2]:
                neighbour = self._cells.get((*at[:place], other, *at[place + 1 :]))
                if neighbour is not None and neighbour != split:
                    found.append(neighbour)
        return found

    def _iteration_s(self, counts: Sequence[int]) -> float:
        """The slower stage, where each pool generates as much of a batch as it is fast."""
        train, *generating = counts
        pools = zip(self._times, generating, strict=True)
        rate = sum(1.0 / times.generation(count).seconds for times, count in pools if count)
        return max(self._times[0].train_s(train), 1.0 / rate) if rate else NEVER

    def _devices(self, counts: Sequence[int]) -> dict[str, int]:
        kinds = [self._table.trainer.device, *(pool.device for pool in self._table.rollout)]
        found: dict[str, int] = {}
        for kind, count in zip(kinds, counts, strict=True):
            if count:
                name = find_device(kind).name
                found[name] = found.get(name, 0) + count
        return found

    def _split(self, counts: Sequence[int]) -> Split:
        train, *generating = counts
        parts = zip(self._table.rollout, self._raw, self._times, generating, strict=True)
        pools = tuple(_share(pool, raw, times, count) for pool, raw, times, count in parts if count)
        return Split(train, sum(generating), pools[0].tensor_parallel, pools)


def _share(pool: RolloutFleet, raw: Mapping[str, object], times: StageTimes, count: int) -> PoolShare:
    return PoolShare(find_device(pool.device).name, pool.site, count, times.generation(count).tensor_parallel, raw)


def _counts(most: int, node: int, smallest: int, *, least: int) -> list[int]:
    """Numbers of devices of a part, ascending: whole machines, or whole replicas on fewer than three machines.

    Args:
        most: devices there are.
        node: devices of a machine.
        smallest: devices of its smallest replica.
        least: 0 where the part may be left out.
    """
    grain = node if most >= 3 * node else smallest
    step = grain * max(1, -(-(most // grain) // MOST))
    return [count for count in sorted({*range(0, most + 1, step), most - most % grain}) if count >= least]
