"""The best parallelism of each stage, and how many devices it then needs (StreamRL, section 4.2, "Parallel configuration").

    cost of a replica of each size  ──► generation on so many devices: replicas of the size that is fastest ─┐
    measured seconds of a trainer   ──► training on so many devices: the fastest that was measured         ─┴─► Algorithm 1

Replicas of few devices are many, and each reads all weights in every step; those of many devices are few, and each decodes
faster. Which of them end a batch first depends on its lengths, and on what fits a KV cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.repack.allocation import allocate, allocate_across
from tailrace.repack.batch_time import batch_time_s
from tailrace.repack.errors import LoadError, NothingFitsError
from tailrace.repack.lpt import checked_lengths
from tailrace.repack.throughput import Costed, ThroughputModel

ReplicaCost = tuple[int, int, float, float, float, float]
"""Devices of a replica (tensor parallelism), tokens that its KV cache holds, 0 if there is no limit, and its k1 to k4."""
TrainingTime = tuple[int, float]
"""Devices of a trainer, and the seconds that it was measured to take for a batch."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How devices generate.

    Args:
        replicas: how many there are.
        size: devices of each.
        seconds: of a batch; infinite if it does not fit.
    """

    replicas: int
    size: int
    seconds: float

    @property
    def devices(self) -> int:
        """Devices in use: replicas times their size."""
        return self.replicas * self.size


@dataclass(frozen=True, slots=True)
class StageShare:
    """Devices of both stages, each with its best parallelism.

    Args:
        generation: how devices generate.
        train: devices that train.
        training_s: seconds of training on a batch.
        iteration_s: seconds of an iteration.
    """

    generation: Arrangement
    train: int
    training_s: float
    iteration_s: float


def share_devices(
    devices: int,
    batch: Sequence[int],
    costs: Sequence[ReplicaCost],
    training: Sequence[TrainingTime],
    *,
    slots: int | None = None,
) -> StageShare:
    """Share devices of one datacenter between both stages, where each takes its best parallelism (Algorithm 1, first part).

    Args:
        devices: in all, at least 2; some may be left over.
        batch: response tokens of each trajectory of a batch.
        costs: replicas of each size that was measured.
        training: trainers that were measured; of some with as many devices the fastest counts.
        slots: trajectories that a replica decodes together; None: no limit.

    Raises:
        LoadError: a value is out of its range.
        NothingFitsError: no allocation fits.
    """
    check_costs(costs)
    trained = check_training(training)
    stage = _Generation(batch, costs, slots)
    found = allocate(devices, lambda count: stage(count).seconds, lambda count: trained.get(count, math.inf))
    arranged, training_s = stage(found.generate), trained[found.train]
    return StageShare(arranged, found.train, training_s, found.iteration_s)


def fewest_devices(
    devices: int, batch: Sequence[int], costs: Sequence[ReplicaCost], train_s: float, *, slots: int | None = None
) -> Arrangement:
    """The fewest devices whose best arrangement holds training up by 2 % at most; where none does, the fastest of all.

    That is Algorithm 1's second part, for generation that has devices of its own beside a trainer that has what it has.

    Args:
        devices: that may generate.
        batch, costs, slots: see `share_devices`.
        train_s: seconds of training on a batch.

    Raises:
        LoadError: a value is out of its range.
        NothingFitsError: nothing fits.
    """
    check_costs(costs)
    stage = _Generation(batch, costs, slots)
    if stage(devices).seconds == math.inf:
        sizes = ", ".join(str(cost[0]) for cost in costs)
        raise NothingFitsError(
            f"found no replica of {sizes} devices that fits {devices} devices and whose KV cache holds the longest response, "
            f"{max(batch)} tokens; expected more devices for replicas, or for each"
        )
    found = allocate_across(devices, 1, lambda count: stage(count).seconds, lambda _: train_s)
    return stage(found.generate)


def round_sizes(
    devices: int,
    lengths: Sequence[int],
    costs: Sequence[ReplicaCost],
    *,
    kept: int,
    launched: int,
    slots: int | None = None,
) -> tuple[int, int]:
    """Devices of a replica with which short and long rounds are generated soonest, of equals the fewest (RollPacker, 4.2).

    A long round waits for the `kept` trajectories that it launches. A short one launches `launched`, and is over when `kept` of
    them have finished: the others have generated as much as the longest of these by then, and so count with that.

    Args:
        devices: of all replicas together.
        lengths: response tokens of earlier trajectories.
        costs: replicas of each size that was measured.
        kept: trajectories that a round keeps.
        launched: trajectories that a short round launches, at least `kept`.
        slots: trajectories that a replica decodes together; None: no limit.

    Raises:
        LoadError: a value is out of its range.
        NothingFitsError: no size fits the devices and holds the longest response.
    """
    models = check_costs(costs)
    checked_lengths(lengths, "lengths")
    if not 1 <= kept <= launched:
        raise LoadError(
            f"found kept={kept} and launched={launched}, expected at least 1, and no fewer launched than kept"
        )
    ordered = sorted(lengths)
    raced, all_kept = _spread(ordered, launched), _spread(ordered, kept)
    best: list[int] = []
    for batch in ([min(length, raced[kept - 1]) for length in raced], all_kept):
        taken = {
            size: batch_time_s(batch, devices // size, models[size], slots, kv_tokens or None)
            for size, kv_tokens, *_ in sorted(costs)
            if size <= devices
        }
        size = min(taken, key=lambda size: taken[size], default=0)
        if not size or taken[size] == math.inf:
            sizes = ", ".join(str(cost[0]) for cost in costs)
            raise NothingFitsError(
                f"found no replica of {sizes} devices that fits {devices} devices and whose KV cache holds the longest "
                f"response, {ordered[-1]} tokens; expected more devices for replicas, or for each"
            )
        best.append(size)
    return best[0], best[1]


def _spread(ordered: Sequence[int], count: int) -> list[int]:
    """`count` lengths at equal distances in ascending ones."""
    return [ordered[(2 * place + 1) * len(ordered) // (2 * count)] for place in range(count)]


def check_costs(costs: Sequence[ReplicaCost]) -> dict[int, ThroughputModel]:
    """The cost model of replicas of each size.

    Raises:
        LoadError: a row is out of its range, or a size occurs twice.
    """
    models: dict[int, ThroughputModel] = {}
    for size, kv_tokens, *k in costs:
        if size < 1 or size in models:
            raise LoadError(f"found a row of {size} devices in replica_costs, expected at least 1, and each size once")
        if kv_tokens < 0:
            raise LoadError(
                f"found {kv_tokens} tokens in the KV cache of a replica of {size} devices, expected at least 1, or 0 for no "
                "limit"
            )
        models[size] = Costed(*k).model
    return models


def check_training(training: Sequence[TrainingTime]) -> dict[int, float]:
    """The fewest seconds of training that were measured, by devices.

    Raises:
        LoadError: a row is out of its range.
    """
    fastest: dict[int, float] = {}
    for devices, seconds in training:
        if devices < 1 or not 0 < seconds < math.inf:
            raise LoadError(
                f"found {seconds} s of training on {devices} devices, expected seconds above 0 and at least 1 device"
            )
        fastest[devices] = min(seconds, fastest.get(devices, math.inf))
    return fastest


class _Generation:
    """The best arrangement of at most so many devices for a batch; of equally fast ones that with fewest devices."""

    def __init__(self, batch: Sequence[int], costs: Sequence[ReplicaCost], slots: int | None) -> None:
        self._batch, self._slots = batch, slots
        self._costs = [(size, kv_tokens or None, ThroughputModel(*k)) for size, kv_tokens, *k in costs]
        self._best = [Arrangement(0, 0, math.inf)]  # on at most 0, 1, 2, ... devices

    def __call__(self, devices: int) -> Arrangement:
        for count in range(len(self._best), devices + 1):
            exactly = [self._with(count // cost[0], *cost) for cost in self._costs if count % cost[0] == 0]
            # More devices allow all that fewer do: some may be left over.
            best = min([self._best[-1], *exactly], key=lambda one: (one.seconds, one.devices, one.size))
            self._best.append(best)
        return self._best[devices]

    def _with(self, replicas: int, size: int, kv_tokens: int | None, model: ThroughputModel) -> Arrangement:
        return Arrangement(replicas, size, batch_time_s(self._batch, replicas, model, self._slots, kv_tokens))
