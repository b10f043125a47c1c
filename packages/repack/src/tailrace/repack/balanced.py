"""Axis provisioning: as many replicas as keep generation as fast as training (StreamRL, section 4.2).

    the start       ──► Algorithm 1 for the devices that generate, and of each replica, if what it needs is known
    an iteration    ──► generation slower, and one replica more makes the stages more alike  ──► start one
    is over         ──► training slower, and one replica fewer makes the stages more alike   ──► stop one

The paper adds a replica as soon as the gap between the stages, delta, is at least what one more replica saves, delta'. Taken
literally, one noisy iteration is enough, a replica that saves nothing is always added, and none is ever removed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Annotated

from tailrace.contracts import (
    Facts,
    FleetView,
    Growth,
    Health,
    IterationRecord,
    ProvisioningPolicy,
    Reason,
    StartReplica,
    StopReplica,
    Tried,
    Why,
)
from tailrace.repack.batch_time import batch_like, batch_time_s
from tailrace.repack.errors import LoadError
from tailrace.repack.lpt import checked_lengths
from tailrace.repack.parallelism import (
    Arrangement,
    ReplicaCost,
    TrainingTime,
    check_costs,
    check_training,
    fewest_devices,
)
from tailrace.repack.throughput import Costed

_HISTORY = 64


@dataclass(frozen=True, slots=True)
class Balanced(ProvisioningPolicy):
    """Adds a replica where generation is the slower stage, and removes one where training is.

    The gap is the seconds by which generation of an iteration took longer than its training. One replica more saves some
    seconds of generation; one fewer costs some. A replica is added once the gap was at least what it saves in each of the last
    `patience` iterations, and removed once the gap was at least what that costs, the other way. So after a change the same
    stage is predicted to be the slower one, by less: removing a replica is never predicted to lengthen an iteration.

    With a cost model, what a change saves or costs is as for one batch of the last lengths on free replicas, in proportion to
    the seconds that were measured. Without one, work is taken to divide evenly, although long responses do not.

    Nothing changes once the run's last group has started, since generation runs dry then. And it does not flap. Only
    iterations count in which the same replicas served throughout; after a change, and after a failure, `cooldown` such
    iterations are left out; and a gap below the share `margin` of the slower stage is none.

    With the costs of replicas of several sizes (`replica_costs`), the start has replicas of the size that generates a batch of
    `lengths` soonest, and later ones are like them. Devices of a replica do not change after the start.

    Args:
        count: replicas at the start, where seconds of training and `lengths` do not say how many are needed.
        tp: devices of each, where `replica_costs` and `lengths` do not say which are best.
        devices: devices that replicas may use in all; None: twice as many as `count` of them have.
        fewest: replicas that are always kept.
        patience: iterations in a row that must ask for a change.
        cooldown: iterations after a change that do not count.
        margin: share of the slower stage's seconds below which a gap is noise.
        least_gain: of what a replica would save if work divided evenly, the share that it must at least be predicted to save.
        slots: trajectories that a replica decodes together at most; None: no limit.
        trajectories: of a batch.
        train_s: seconds of training on a batch, as a profile or an earlier run has them; None: those of `training_times`.
        lengths: response tokens of earlier trajectories, for the start; empty: not known.
        replica_costs: a row for each size of a replica that was measured: its devices, tokens that its KV cache holds (0: no
            limit), and its k1 to k4. `tailrace fit-cost` and `tailrace profile` print them.
        training_times: a row for each trainer that was measured: its devices, and its seconds for a batch.
        trainer_devices: devices of the trainer; None: not known.
        heads: the model's attention heads, which the devices of a replica divide; None: not known.
        k1, k2, k3, k4: see `Costed`; None: there is no cost model.

    Raises:
        LoadError: an option is out of its range, or no device is free for another replica.
        NothingFitsError: no replica of `replica_costs` fits the devices and holds the longest response.
    """

    count: int = 2
    tp: int = 1
    devices: Annotated[int | None, Tried((None,))] = None
    fewest: Annotated[int, Tried((1,))] = 1
    patience: Annotated[int, Tried((1, 2, 3))] = 3
    cooldown: Annotated[int, Tried((0, 1, 3))] = 3
    margin: Annotated[float, Tried((0.0, 0.05))] = 0.05
    least_gain: Annotated[float, Tried((0.0, 0.2))] = 0.2
    slots: int | None = None
    trajectories: int | None = None
    train_s: Annotated[float | None, Tried((None,))] = None
    lengths: Annotated[tuple[int, ...], Tried((None,))] = ()
    replica_costs: tuple[ReplicaCost, ...] = ()
    training_times: tuple[TrainingTime, ...] = ()
    trainer_devices: int | None = None
    heads: int | None = None
    k1: float | None = None
    k2: float | None = None
    k3: float | None = None
    k4: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("count", 1), ("tp", 1), ("fewest", 1), ("patience", 1), ("cooldown", 0)):
            if getattr(self, name) < least:
                raise LoadError(f"found {name}={getattr(self, name)}, expected at least {least}")
        for name in ("slots", "trajectories", "trainer_devices"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise LoadError(f"found {name}={value}, expected at least 1")
        for name in ("margin", "least_gain"):
            if not 0 <= getattr(self, name) < 1:
                raise LoadError(f"found {name}={getattr(self, name)}, expected a share of at least 0 and below 1")
        if self.train_s is not None and not self.train_s > 0:
            raise LoadError(f"found train_s={self.train_s}, expected seconds above 0")
        if self.lengths:
            checked_lengths(self.lengths, "lengths")
        if self._costed is None and not self.replica_costs and (self.train_s is not None or self.lengths):
            raise LoadError("found train_s or lengths without a cost model, expected one: `tailrace fit-cost` finds it")
        self._check_rows()
        if self.begins is None or not self.replica_costs:
            self._check_count()

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """The run's replicas, what they and the trainer are, and what is known of the times of both stages."""
        costs = {} if facts.costs is None else dataclasses.asdict(facts.costs)
        stages = {} if facts.stages is None else dataclasses.asdict(facts.stages)
        return {
            "count": facts.replicas,
            "tp": facts.tp,
            "slots": facts.slots,
            "trajectories": facts.trajectories,
            "trainer_devices": facts.trainer_devices,
            "heads": facts.heads,
            **costs,
            **stages,
        }

    def growth(self) -> Growth:
        """Replicas at the start, most of them, and the devices of each."""
        return Growth(self.start, self.most, self.spans)

    def watched_iterations(self) -> int:
        """Iterations that it looks back at."""
        return max(_HISTORY, self.patience + self.cooldown)

    @property
    def most(self) -> int:
        """Most replicas that the devices allow."""
        return self._devices // self.spans

    @property
    def spans(self) -> int:
        """Devices of each replica."""
        return self.tp if self.begins is None else self.begins.size

    @property
    def start(self) -> int:
        """Replicas at the start."""
        return self.count if self.begins is None else min(self.most, max(self.fewest, self.begins.replicas))

    @property
    def begins(self) -> Arrangement | None:
        """The replicas that hold training up by 2 % at most, on the fewest devices (Algorithm 1); None without facts."""
        train_s, costs = self._train_s, self.replica_costs or self._own_cost
        if train_s is None or not costs or not self.lengths or self.trajectories is None:
            return None
        batch = tuple(batch_like(self.lengths, self.trajectories))
        return _fewest_devices(self._devices, batch, costs, train_s, self.slots)

    def plan(self, view: FleetView) -> Sequence[StartReplica | StopReplica]:
        """Start the replicas; then add one or remove one, once all are up and the stages have differed for long enough."""
        members = view.of("replica")
        staying = [member for member in members if member.health is not Health.STOPPING]
        if not staying:
            return [self._first()] * self.start
        progress = view.progress
        ends = progress.admitted - progress.dropped >= progress.last_version * progress.batch_groups
        if ends or any(member.health is not Health.UP for member in members):
            return ()
        last = self._counted(view.iterations, len(staying))
        if len(last) < self.patience:
            return ()
        here = len(staying)
        batch = batch_like(view.lengths, round(fmean(one.trajectories for one in last)))
        stages = {
            "generation_s": fmean(one.generation_s for one in last),
            "training_s": fmean(one.training_s for one in last),
        }
        if self.adds(last, batch, here):
            saved_s = stages["generation_s"] * self._saved(batch, here)
            return [StartReplica(Reason(Why.GENERATION_SLOWER, numbers={**stages, "saved_s": saved_s}), self._own_tp)]
        if self.removes(last, batch, here):
            cost_s = stages["generation_s"] * self._cost(batch, here)
            reason = Reason(Why.TRAINING_SLOWER, numbers={**stages, "cost_s": cost_s})
            leaver = min(reversed(staying), key=lambda member: member.in_flight)  # the last started of equals
            return [StopReplica(leaver.id, reason)]
        return ()

    def adds(self, last: Sequence[IterationRecord], batch: Sequence[int], replicas: int) -> bool:
        """Whether these iterations ask for a replica more.

        Args:
            last: the iterations that count.
            batch: response tokens of the trajectories of one; empty if none is known.
            replicas: how many there are.
        """
        saved = self._saved(batch, replicas)
        if replicas >= self.most or not saved > 0 or saved < self.least_gain / (replicas + 1):
            return False
        return all(
            one.generation_s - one.training_s >= max(one.generation_s * saved, self.margin * one.generation_s)
            for one in last
        )

    def removes(self, last: Sequence[IterationRecord], batch: Sequence[int], replicas: int) -> bool:
        """Whether these iterations ask for a replica fewer; see `adds`."""
        if replicas <= self.fewest:
            return False
        cost = self._cost(batch, replicas)
        return all(
            one.training_s > one.generation_s
            and one.training_s - one.generation_s >= max(one.generation_s * cost, self.margin * one.training_s)
            for one in last
        )

    def _first(self) -> StartReplica:
        begins, train_s = self.begins, self._train_s
        if begins is None or train_s is None:
            return StartReplica()
        numbers = {
            "replicas": self.start,
            "devices": begins.size,
            "generation_s": self._time_s(batch_like(self.lengths, self.trajectories or 0), self.start),
            "training_s": train_s,
        }
        return StartReplica(Reason(Why.ALLOCATED, numbers=numbers), self._own_tp)

    def _counted(self, records: Sequence[IterationRecord], replicas: int) -> Sequence[IterationRecord]:
        """The last `patience` iterations with so many replicas, without those just after a change."""
        alike = next((n for n, one in enumerate(reversed(records)) if one.replicas != replicas), len(records))
        settled = alike if alike == len(records) else alike - self.cooldown
        return records[-self.patience :] if settled >= self.patience else ()

    def _saved(self, batch: Sequence[int], replicas: int) -> float:
        """The share of generation that one replica more is predicted to save."""
        return 1 - self._time_s(batch, replicas + 1) / self._time_s(batch, replicas)

    def _cost(self, batch: Sequence[int], replicas: int) -> float:
        """What one replica fewer is predicted to cost, as a share of generation."""
        return self._time_s(batch, replicas - 1) / self._time_s(batch, replicas) - 1

    def _time_s(self, batch: Sequence[int], replicas: int) -> float:
        """Seconds of generation, or in any unit if there is no cost model or nothing was generated."""
        cost = next((cost for cost in (*self.replica_costs, *self._own_cost) if cost[0] == self.spans), None)
        if cost is None or not batch:
            return 1.0 / replicas
        _, kv_tokens, *k = cost
        room = max(kv_tokens, max(batch)) if kv_tokens else None  # a response that has run fits, whatever was measured
        return batch_time_s(batch, replicas, Costed(*k).model, self.slots, room)

    def _check_count(self) -> None:
        needed = (self.count + 1) * self.tp
        if self.devices is not None and self.devices < needed:
            raise LoadError(
                f"found devices={self.devices} for {self.count} replicas of {self.tp} at the start, so that none is free for "
                f"another; expected at least {needed}"
            )
        if self.fewest > self.count:
            raise LoadError(
                f"found fewest={self.fewest} and {self.count} replicas at the start, expected at most these"
            )

    def _check_rows(self) -> None:
        check_costs(self.replica_costs)
        for size, *_ in self.replica_costs:
            if size & (size - 1) or (self.heads is not None and self.heads % size):
                heads = "" if self.heads is None else f" that divide the model's {self.heads} heads"
                raise LoadError(f"found a replica of {size} devices in replica_costs, expected powers of two{heads}")
        trained = check_training(self.training_times)
        if trained and self.train_s is None and self.trainer_devices is not None and self._train_s is None:
            raise LoadError(
                f"found no row of {self.trainer_devices} devices in training_times, which the trainer has, expected one beside "
                f"{', '.join(map(str, sorted(trained)))}: `tailrace fit-cost` of such a run finds it"
            )

    @property
    def _devices(self) -> int:
        return 2 * self.count * self.tp if self.devices is None else self.devices

    @property
    def _own_tp(self) -> int | None:
        """Devices of a replica, if they are others than those that the run's configuration says."""
        return None if self.spans == self.tp else self.spans

    @property
    def _train_s(self) -> float | None:
        if self.train_s is not None or self.trainer_devices is None:
            return self.train_s
        return check_training(self.training_times).get(self.trainer_devices)

    @property
    def _own_cost(self) -> tuple[ReplicaCost, ...]:
        """The cost of a replica of `tp` devices, if there is a cost model."""
        costed = self._costed
        return () if costed is None else ((self.tp, 0, costed.k1, costed.k2, costed.k3, costed.k4),)

    @property
    def _costed(self) -> Costed | None:
        if self.k1 is None or self.k2 is None or self.k3 is None or self.k4 is None:
            return None
        return Costed(self.k1, self.k2, self.k3, self.k4)


@lru_cache(maxsize=8)
def _fewest_devices(
    devices: int, batch: tuple[int, ...], costs: tuple[ReplicaCost, ...], train_s: float, slots: int | None
) -> Arrangement:
    """`fewest_devices`, which a run asks for often."""
    return fewest_devices(devices, batch, costs, train_s, slots=slots)
