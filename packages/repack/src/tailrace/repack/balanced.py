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
    MemberView,
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
    StageShare,
    TrainingTime,
    check_costs,
    check_training,
    fewest_devices,
    share_devices,
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

    Where trainer and replicas share devices out (`all_devices`), the start is Algorithm 1's, first part: of all ways to share
    them the one whose slower stage is fastest, by what was measured of both. The trainer keeps what it then has.

    Of several pools of replicas one may come and go (`pool`); the others stay as they are. Work is then taken to divide among
    all replicas by their speed: tokens a second of a full decode batch (`pool_costs`), or alike where a pool's costs are not
    known.

    With the costs of replicas of several sizes (`replica_costs`), the start has replicas of the size that generates a batch of
    `lengths` soonest, and later ones are like them. Devices of a replica do not change after the start.

    Args:
        count: replicas at the start, where seconds of training and `lengths` do not say how many are needed.
        tp: devices of each, where `replica_costs` and `lengths` do not say which are best.
        devices: devices that replicas may use in all; None: twice as many as `count` of them have.
        all_devices: devices of trainer and replicas together, which are shared out at the start; `replica_costs`,
            `training_times` and `lengths` say how. None: the trainer has what it is given.
        unit_devices: devices that come and go together, such as the 8 of a node: as many replicas as stand on them are added or
            removed at once (the paper's Figure 11 adds nodes). None: those of one replica.
        fewest: replicas that are always kept.
        pool: of several pools the one whose replicas are added and removed; empty: all replicas are alike.
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
        pools: of several pools the name, replicas at the start, devices of each and trajectories that each decodes together.
        pool_costs: name and k1 to k4 of the pools whose costs are known.
        k1, k2, k3, k4: see `Costed`; None: there is no cost model.

    Raises:
        LoadError: an option is out of its range, or no device is free for another replica.
        NothingFitsError: no replica of `replica_costs` fits the devices and holds the longest response.
    """

    count: int = 2
    tp: int = 1
    devices: Annotated[int | None, Tried((None,))] = None
    all_devices: int | None = None
    unit_devices: int | None = None
    fewest: Annotated[int, Tried((1,))] = 1
    pool: str = ""
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
    pools: tuple[tuple[str, int, int, int], ...] = ()
    pool_costs: tuple[tuple[str, float, float, float, float], ...] = ()
    k1: float | None = None
    k2: float | None = None
    k3: float | None = None
    k4: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("count", 1), ("tp", 1), ("fewest", 1), ("patience", 1), ("cooldown", 0)):
            if getattr(self, name) < least:
                raise LoadError(f"found {name}={getattr(self, name)}, expected at least {least}")
        for name in ("slots", "trajectories", "trainer_devices", "unit_devices", "all_devices"):
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
        self._check_sharing()
        if self._costed is None and not self.replica_costs and (self.train_s is not None or self.lengths):
            raise LoadError("found train_s or lengths without a cost model, expected one: `tailrace fit-cost` finds it")
        self._check_rows()
        self._check_pool()
        if self.unit_devices is not None and self.unit_devices % self.spans:
            raise LoadError(
                f"found unit_devices={self.unit_devices} and replicas of {self.spans} devices, expected a multiple: replicas "
                "stand on whole units"
            )
        if self.begins is None or not self.replica_costs:
            self._check_count()
        elif self.most < max(1, self.fewest):
            raise LoadError(
                f"found {self._devices} devices for replicas of {self.spans} in units of {self.unit}, expected room for at "
                f"least {max(self.unit, self.fewest)} replicas"
            )

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """The run's replicas, what they and the trainer are, and what is known of the times of both stages."""
        costs = {} if facts.costs is None else dataclasses.asdict(facts.costs)
        sizes = facts.sizes
        stages: dict[str, object] = (
            {} if sizes is None else {"replica_costs": sizes.replica_costs, "lengths": sizes.lengths}
        )
        if facts.stages is not None:
            stages = dataclasses.asdict(facts.stages)
        return {
            "count": facts.replicas,
            "tp": facts.tp,
            "slots": facts.slots,
            "trajectories": facts.trajectories,
            "trainer_devices": facts.trainer_devices,
            "heads": facts.heads,
            "pools": tuple(dataclasses.astuple(pool) for pool in facts.pools) if len(facts.pools) > 1 else (),
            "pool_costs": tuple((name, *dataclasses.astuple(found)) for name, found in facts.pool_costs),
            **costs,
            **stages,
        }

    def growth(self) -> Growth:
        """Replicas at the start, most of them, and the devices of each."""
        if not self.pool:
            return Growth(self.start, self.most, self.spans)
        beside = sum(count for name, count, *_ in self.pools if name != self.pool)
        return Growth(beside + self.start, beside + self.most, None, self.pool)

    def trains_on(self) -> int | None:
        """The trainer's devices, where they are shared out with those of replicas (Algorithm 1)."""
        return None if self._shares is None else self._shares.train

    def watched_iterations(self) -> int:
        """Iterations that it looks back at."""
        return max(_HISTORY, self.patience + self.cooldown)

    @property
    def most(self) -> int:
        """Most replicas that the devices allow, in whole units."""
        return self._devices // self.spans // self.unit * self.unit

    @property
    def unit(self) -> int:
        """Replicas that are added or removed at once."""
        return 1 if self.unit_devices is None else self.unit_devices // self.spans

    @property
    def spans(self) -> int:
        """Devices of each replica."""
        return self._own_devices if self.begins is None else self.begins.size

    @property
    def start(self) -> int:
        """Replicas at the start, in whole units where they are chosen."""
        if self.begins is None:
            return self._own_count
        wanted = max(self.fewest, self.begins.replicas)
        return min(self.most, -(-wanted // self.unit) * self.unit)

    @property
    def begins(self) -> Arrangement | None:
        """The replicas that hold training up by 2 % at most, on the fewest devices (Algorithm 1); None without facts."""
        train_s, costs = self._train_s, self.replica_costs or self._own_cost
        if self.pool or train_s is None or not costs or not self.lengths or self.trajectories is None:
            return None
        batch = tuple(batch_like(self.lengths, self.trajectories))
        return _fewest_devices(self._devices, batch, costs, train_s, self.slots)

    @property
    def _shares(self) -> StageShare | None:
        """How all devices are shared out; None where they are not."""
        if self.all_devices is None or self.trajectories is None:
            return None
        batch = tuple(batch_like(self.lengths, self.trajectories))
        return _shared(self.all_devices, batch, self.replica_costs, self.training_times, self.slots)

    def plan(self, view: FleetView) -> Sequence[StartReplica | StopReplica]:
        """Start the replicas; then add one or remove one, once all are up and the stages have differed for long enough."""
        members = view.of("replica")
        everyone = [member for member in members if member.health is not Health.STOPPING]
        staying = [member for member in everyone if not self.pool or member.pool == self.pool]
        if not everyone:
            pools = [(name, count) for name, count, *_ in self.pools] if self.pool else []
            starts = [StartReplica(pool=name) for name, count in pools for _ in range(count)]
            return starts or [self._first()] * self.start
        progress = view.progress
        ends = progress.admitted - progress.dropped >= progress.last_version * progress.batch_groups
        if ends or any(member.health is not Health.UP for member in members):
            return ()
        last = self._counted(view.iterations, len(everyone))
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
            reason = Reason(Why.GENERATION_SLOWER, numbers={**stages, "saved_s": saved_s})
            added = StartReplica(reason, self._own_tp, self.pool or None)
            return [added] * self.unit
        if self.removes(last, batch, here):
            cost_s = stages["generation_s"] * self._cost(batch, here)
            reason = Reason(Why.TRAINING_SLOWER, numbers={**stages, "cost_s": cost_s})
            return [StopReplica(leaver.id, reason) for leaver in self._leavers(staying)]
        return ()

    def _leavers(self, staying: Sequence[MemberView]) -> list[MemberView]:
        """A unit of replicas with little to do, of one machine if one has as many."""
        youngest_first = [*reversed(staying)]  # of those that have equally little to do the last started goes
        idlest = sorted(youngest_first, key=lambda member: member.in_flight)
        by_machine: dict[str, list[MemberView]] = {}
        for member in idlest:
            by_machine.setdefault(member.machine, []).append(member)
        units = [here[: self.unit] for name, here in by_machine.items() if name and len(here) >= self.unit]
        return min(units, key=lambda unit: sum(member.in_flight for member in unit), default=idlest[: self.unit])

    def adds(self, last: Sequence[IterationRecord], batch: Sequence[int], replicas: int) -> bool:
        """Whether these iterations ask for a unit of replicas more.

        Args:
            last: the iterations that count.
            batch: response tokens of the trajectories of one; empty if none is known.
            replicas: how many there are.
        """
        saved = self._saved(batch, replicas)
        evenly = self.unit / (self._beside + replicas + self.unit)
        if replicas + self.unit > self.most or not saved > 0 or saved < self.least_gain * evenly:
            return False
        return all(
            one.generation_s - one.training_s >= max(one.generation_s * saved, self.margin * one.generation_s)
            for one in last
        )

    def removes(self, last: Sequence[IterationRecord], batch: Sequence[int], replicas: int) -> bool:
        """Whether these iterations ask for a unit of replicas fewer; see `adds`."""
        if replicas - self.unit < self.fewest:
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
        """The share of generation that one unit more is predicted to save."""
        return 1 - self._time_s(batch, replicas + self.unit) / self._time_s(batch, replicas)

    def _cost(self, batch: Sequence[int], replicas: int) -> float:
        """What one unit fewer is predicted to cost, as a share of generation."""
        return self._time_s(batch, replicas - self.unit) / self._time_s(batch, replicas) - 1

    def _time_s(self, batch: Sequence[int], replicas: int) -> float:
        """Seconds of generation, or in any unit if there is no cost model, or several pools, or nothing was generated."""
        if self.pool:
            return 1.0 / (self._beside + replicas)
        cost = next((cost for cost in (*self.replica_costs, *self._own_cost) if cost[0] == self.spans), None)
        if cost is None or not batch:
            return 1.0 / replicas
        _, kv_tokens, *k = cost
        room = max(kv_tokens, max(batch)) if kv_tokens else None  # a response that has run fits, whatever was measured
        return batch_time_s(batch, replicas, Costed(*k).model, self.slots, room)

    def _check_count(self) -> None:
        count, tp = self._own_count, self._own_devices
        needed = (count + self.unit) * tp
        if self.devices is not None and self.devices < needed:
            raise LoadError(
                f"found devices={self.devices} for {count} replicas of {tp} at the start, so that none is free for "
                f"{'another' if self.unit == 1 else f'{self.unit} more'}; expected at least {needed}"
            )
        if count % self.unit:
            raise LoadError(
                f"found {count} replicas at the start and units of {self.unit} (unit_devices={self.unit_devices}), "
                "expected whole units"
            )
        if self.fewest > count:
            raise LoadError(f"found fewest={self.fewest} and {count} replicas at the start, expected at most these")

    def _check_rows(self) -> None:
        check_costs(self.replica_costs)
        for size, *_ in self.replica_costs:
            if size & (size - 1) or (self.heads is not None and self.heads % size):
                heads = "" if self.heads is None else f" that divide the model's {self.heads} heads"
                raise LoadError(f"found a replica of {size} devices in replica_costs, expected powers of two{heads}")
        trained = check_training(self.training_times)
        if (
            trained
            and self.all_devices is None
            and self.train_s is None
            and self.trainer_devices is not None
            and self._train_s is None
        ):
            raise LoadError(
                f"found no row of {self.trainer_devices} devices in training_times, which the trainer has, expected one beside "
                f"{', '.join(map(str, sorted(trained)))}: `tailrace fit-cost` of such a run finds it"
            )

    def _check_sharing(self) -> None:
        if self.all_devices is None:
            return
        known = {"replica_costs": self.replica_costs, "training_times": self.training_times, "lengths": self.lengths}
        if lacking := [name for name, rows in known.items() if not rows]:
            raise LoadError(
                f"found all_devices={self.all_devices} without {' and '.join(lacking)}, expected what was measured of both "
                "stages: `tailrace profile` and `tailrace fit-cost` print it"
            )
        if self.devices is not None or self.train_s is not None:
            raise LoadError(
                "found all_devices beside devices or train_s, expected one of them: the shares follow from what was measured"
            )

    @property
    def _devices(self) -> int:
        if self._shares is not None and self.all_devices is not None:
            return self.all_devices - self._shares.train
        return 2 * self._own_count * self._own_devices if self.devices is None else self.devices

    @property
    def _own_pool(self) -> tuple[str, int, int, int] | None:
        """The pool whose replicas come and go; None where all are alike."""
        return next((pool for pool in self.pools if self.pool and pool[0] == self.pool), None)

    @property
    def _own_count(self) -> int:
        return self.count if self._own_pool is None else self._own_pool[1]

    @property
    def _own_devices(self) -> int:
        return self.tp if self._own_pool is None else self._own_pool[2]

    @property
    def _beside(self) -> float:
        """The other pools, in replicas of the own one that would be as fast."""
        if self._own_pool is None:
            return 0.0
        costs = {name: Costed(*k).model for name, *k in self.pool_costs}
        known = all(name in costs for name, *_ in self.pools)
        speeds = {name: costs[name].throughput(0.0, slots) if known else 1.0 for name, _, _, slots in self.pools}
        return sum(count * speeds[name] for name, count, *_ in self.pools if name != self.pool) / speeds[self.pool]

    def _check_pool(self) -> None:
        if not self.pool:
            return
        if self._own_pool is None:
            known = ", ".join(name for name, *_ in self.pools) or "none: all replicas are alike"
            raise LoadError(f"found pool={self.pool!r}, expected one of several pools of the run ({known})")
        if self.all_devices is not None or self.train_s is not None:
            raise LoadError(
                f"found all_devices or train_s beside pool={self.pool!r}, expected neither: several pools begin as configured"
            )

    @property
    def _own_tp(self) -> int | None:
        """Devices of a replica, if they are others than those that the run's configuration says."""
        return None if self.spans == self._own_devices else self.spans

    @property
    def _train_s(self) -> float | None:
        if self._shares is not None:
            return self._shares.training_s
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
def _shared(
    devices: int,
    batch: tuple[int, ...],
    costs: tuple[ReplicaCost, ...],
    training: tuple[TrainingTime, ...],
    slots: int | None,
) -> StageShare:
    """`share_devices`, which a run asks for often."""
    return share_devices(devices, batch, costs, training, slots=slots)


@lru_cache(maxsize=8)
def _fewest_devices(
    devices: int, batch: tuple[int, ...], costs: tuple[ReplicaCost, ...], train_s: float, slots: int | None
) -> Arrangement:
    """`fewest_devices`, which a run asks for often."""
    return fewest_devices(devices, batch, costs, train_s, slots=slots)
