"""Splits over pools of unequal devices and over sites: how many of each pool's devices generate, and how many train.

the table's own numbers are what there is ──► every whole number of machines of each ──► time and price by the stages alone
                                              ──► the few best are simulated, and then their neighbours
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

from tailrace.fleetsim.config import FleetConfig, RolloutFleet, fleet_config
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware import find_device
from tailrace.fleetsim.layout import layout
from tailrace.fleetsim.plan.space import PoolShare, Split
from tailrace.fleetsim.stage_times import NEVER, StageTimes
from tailrace.pipeline.config.models import RunConfig

Worth = Callable[[float, Mapping[str, int]], float]
"""How good an iteration of some seconds on devices of some kinds is: the less, the better."""

SIMULATED = 12
MOST = 8  # numbers of devices of each part that are tried: machines are merged into larger steps beyond that


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
