"""Axis provisioning: how many devices a replica spans in each kind of round (RollPacker, section 4.2); with scale-down too.

preemptions of earlier rounds ──► the size that a kind of round asks for ─┐
profile, seconds of earlier rounds ──► what a change saves, beside its cost ─┴─► resize, or stay
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean
from typing import Annotated

from tailrace.contracts import (
    Facts,
    FleetAction,
    FleetView,
    Health,
    MemberView,
    ProvisioningPolicy,
    Reason,
    ResizeReplica,
    RoundRecord,
    RoundView,
    StartReplica,
    StopReplica,
    Tried,
    Why,
)
from tailrace.repack.batch_time import batch_like, batch_time_s
from tailrace.repack.errors import LoadError
from tailrace.repack.parallelism import ReplicaCost, check_costs
from tailrace.repack.scale_down import ScaleDown
from tailrace.repack.throughput import Costed

_MEASURED = 4
"""Rounds of a kind and size whose mean seconds count: lengths change as the model learns."""


def to_size(
    replicas: Sequence[MemberView], tp: int, devices: int, reason: Reason
) -> list[StartReplica | StopReplica | ResizeReplica]:
    """The actions after which every replica spans `tp` devices, and they have `devices` in all, or as many as fit whole.

    Growing replicas take over the devices of those beside them on their machine, which stop. Where replicas shrink, new ones
    start on the devices that they leave.

    Args:
        replicas: those that are not stopping.
    """
    room = max(1, devices // tp)
    in_groups = sorted(replicas, key=lambda replica: (-replica.tp, replica.machine))
    # of the replicas that grow into one, which are neighbours in this order, the first is kept
    kept: list[MemberView] = []
    taken = 0
    for replica in in_groups:
        if taken % tp == 0 or replica.tp >= tp:
            kept.append(replica)
        taken += replica.tp if replica.tp < tp else 0
    kept = kept[:room]
    names = {replica.id for replica in kept}
    stops = [StopReplica(replica.id, reason) for replica in replicas if replica.id not in names]
    resized = [
        ResizeReplica(replica.id, tp, reason) for replica in replicas if replica.id in names and replica.tp != tp
    ]
    return [*stops, *resized, *[StartReplica(reason, tp)] * (room - len(kept))]


@dataclass(frozen=True, slots=True)
class AdaptiveTP(ProvisioningPolicy):
    """Doubles the devices of a replica when a round has more preemptions than its kind of round used to have, and halves them
    after rounds without any.

    Short and long rounds have a size each, since the preemptions of one say nothing of the other. The size of a kind doubles
    after a round with more preemptions than `rise` times the mean of its earlier rounds at that size, once there is one. It
    halves after `calm` rounds in a row without preemptions.

    It does not flap. A size that was reached by halving is kept for at least `calm` rounds: a doubling that was just undone is
    not repeated at once. And each time that a doubling is repeated, undoing it again takes twice as many rounds without
    preemptions as the time before.

    A change is charged at what it costs (`resize_s`): it is made as a round begins, if the rounds until another kind follows
    are to save more than that. What they save is what earlier rounds of the kind took at both sizes. Where one of them never
    ran, it is the difference that the profile's costs predict for the last lengths. Responses beyond what was profiled are not
    predicted: the change is made, and the rounds that follow measure it.

    Args:
        count: replicas at the start.
        tp: devices of each at the start; they have `count * tp` devices in all.
        short, long: devices of a replica in the first round of each kind, as a profile finds them; None: `tp`. More than all
            replicas have together become as many as they have.
        devices_per_machine: most devices of a replica, since links between machines are slow.
        heads: the model's attention heads, which the devices of a replica divide; None: not known.
        smallest: fewest devices that hold the weights and a whole response.
        rise: ratio of preemptions to their mean above which a size doubles.
        calm: rounds without preemptions after which a size halves.
        resize_s: seconds that a change of size takes, as a profile measured it; 0: changes are not charged.
        replica_costs: a row for each size that was profiled: its devices, tokens that its KV cache holds (0: no limit), and its
            k1 to k4.
        longest: most tokens, prompt and response, of a sequence that was measured; responses above it are not predicted. None:
            any are.
        slots: trajectories that a replica decodes together; None: no limit.

    Raises:
        LoadError: a size is no power of two, or beyond the heads or the machine; another number is out of range.
    """

    count: int = 2
    tp: int = 1
    short: Annotated[int | None, Tried((None, 1, 2))] = None
    long: Annotated[int | None, Tried((None, 1, 2))] = None
    devices_per_machine: int = 8
    heads: int | None = None
    smallest: int = 1
    rise: float = 1.05
    calm: Annotated[int, Tried((1, 2, 4))] = 4
    resize_s: float = 0.0
    replica_costs: tuple[ReplicaCost, ...] = ()
    longest: int | None = None
    slots: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("count", 1), ("devices_per_machine", 1), ("calm", 1), ("rise", 1.0)):
            if not getattr(self, name) >= least:
                raise LoadError(f"found {name}={getattr(self, name)}, expected at least {least}")
        possible = self._powers(self.devices_per_machine)
        for name in ("tp", "smallest", "short", "long"):
            size = getattr(self, name)
            if size is not None and size not in possible:
                heads = "" if self.heads is None else f", and the model has {self.heads} heads"
                raise LoadError(
                    f"found {name}={size}, expected one of {', '.join(map(str, possible))}: a replica spans at most "
                    f"{self.devices_per_machine} devices{heads}"
                )
        if not 0 <= self.resize_s < math.inf:
            raise LoadError(f"found resize_s={self.resize_s}, expected finite seconds of at least 0")
        for name in ("longest", "slots"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise LoadError(f"found {name}={value}, expected at least 1")
        check_costs(self.replica_costs)

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """The run's replicas, and what is known of the devices that one can have."""
        asked = {
            "devices_per_machine": facts.devices_per_machine,
            "smallest": facts.smallest_tp,
            "short": facts.best_tp,
            "long": facts.best_tp,
            "heads": facts.heads,
        }
        found = facts.sizes
        profiled = {} if found is None or facts.devices_per_machine == 1 else {
            "smallest": found.smallest,
            "short": found.short,
            "long": found.long,
            "resize_s": found.resize_s,
            "replica_costs": found.replica_costs,
            "longest": found.longest,
            "slots": facts.slots,
        }  # fmt: skip
        known = {name: value for name, value in asked.items() if value is not None}
        return {"count": facts.replicas, "tp": facts.tp, **profiled, **known}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Devices that a replica can span: powers of two that divide the heads, within a machine and all that there are.

        Of a profile those that were measured: others did not hold the model, or were not there.
        """
        possible = self._powers(min(self.devices_per_machine, self.count * self.tp))
        measured = {cost[0] for cost in self.replica_costs}
        return tuple(size for size in possible if size in measured) or possible

    def sizes_of_replicas(self) -> Sequence[int]:
        """The sizes that it may choose."""
        return self.sizes

    def round_milestones(self) -> Sequence[float]:
        """None within a round: it looks when one begins."""
        return ()

    def _powers(self, most: int) -> tuple[int, ...]:
        powers = [2**power for power in range(most.bit_length())]
        return tuple(size for size in powers if size <= most and (self.heads is None or self.heads % size == 0))

    def plan(self, view: FleetView) -> Sequence[FleetAction]:
        """Start all replicas while there is none; where a round is under way for which others are of another size, resize."""
        replicas = [member for member in view.of("replica") if member.health is not Health.STOPPING]
        devices = self.count * self.tp
        if not replicas:
            size = self.size(view.rounds, "short" if view.round is None else view.round.kind)
            return [StartReplica(tp=size)] * (devices // size)
        if view.round is None:
            return ()
        size = self.size(view.rounds, view.round.kind)
        before = max(replica.tp for replica in replicas)
        if all(replica.tp == size for replica in replicas) or not self._pays(view, view.round, before, size):
            return ()
        return to_size(replicas, size, devices, Reason(Why.PLANNED))

    def size(self, rounds: Sequence[RoundRecord], kind: str) -> int:
        """Devices of a replica in the next round of a kind.

        Args:
            rounds: the rounds that are over, of all kinds, oldest first.
        """
        own = [one for one in rounds if one.kind == kind]
        if not own:
            first = (self.short if kind == "short" else self.long) or self.tp
            return max((size for size in self.sizes if size <= first), default=self.sizes[0])
        last = own[-1]
        visit = next((n for n, one in enumerate(reversed(own)) if one.tp != last.tp), len(own))
        if self._rises(own, visit):
            return last.tp * 2
        if self._calms(own, visit):
            return last.tp // 2
        return last.tp

    def _pays(self, view: FleetView, round_: RoundView, before: int, size: int) -> bool:
        """Whether the rounds until another kind follows are to save more than the change costs.

        Where replicas are of several sizes, a change is under way or a failure interrupted one: it is brought to its end.
        """
        alike = all(one.tp == before for one in view.of("replica") if one.health is not Health.STOPPING)
        if not self.resize_s or before == size or not alike:
            return True
        if round_.generated:  # the lengths of a round are not to change its size in its middle
            return False
        saved_s = self._saved_s(view, round_, before, size)
        return saved_s is None or saved_s * _in_a_row(view.rounds, round_.kind) > self.resize_s

    def _saved_s(self, view: FleetView, round_: RoundView, before: int, size: int) -> float | None:
        """Seconds that a round takes less at another size; None if nothing says so."""
        measured = [_took_s(view.rounds, round_.kind, tp) for tp in (before, size)]
        if measured[0] is not None and measured[1] is not None:
            return measured[0] - measured[1]
        batch = batch_like(view.lengths, round_.samples)
        costs = {tp: (kv_tokens, Costed(*k).model) for tp, kv_tokens, *k in self.replica_costs}
        if not batch or not {before, size} <= costs.keys() or (self.longest is not None and max(batch) > self.longest):
            return None
        taken = []
        for tp in (before, size):
            kv_tokens, model = costs[tp]
            replicas = max(1, self.count * self.tp // tp)
            room = (
                max(kv_tokens, max(batch)) if kv_tokens else None
            )  # a response that has run fits, whatever was measured
            taken.append(batch_time_s(batch, replicas, model, self.slots, room))
        return taken[0] - taken[1]

    def _rises(self, own: Sequence[RoundRecord], visit: int) -> bool:
        """Whether the size doubles, after the last `visit` rounds of a kind were of one size."""
        last = own[-1]
        before = [one.preemptions for one in own[:-1] if one.tp == last.tp]
        undone = visit < len(own) and own[-visit - 1].tp > last.tp
        if not before or last.tp * 2 not in self.sizes or (undone and visit < self.calm):
            return False
        return last.preemptions > self.rise * fmean(before)

    def _calms(self, own: Sequence[RoundRecord], visit: int) -> bool:
        """Whether the size halves."""
        last = own[-1]
        doubled = sum(one.tp * 2 == then.tp == last.tp for one, then in pairwise(own))
        patience = self.calm * 2 ** max(0, doubled - 1)
        smaller = last.tp // 2
        if smaller < self.smallest or smaller not in self.sizes or visit < patience:
            return False
        return not any(one.preemptions for one in own[-patience:])


def _took_s(rounds: Sequence[RoundRecord], kind: str, tp: int) -> float | None:
    """Mean seconds of the last rounds of a kind at a size; None if there was none."""
    found = [one.generation_s for one in rounds if one.kind == kind and one.tp == tp][-_MEASURED:]
    return fmean(found) if found else None


def _in_a_row(rounds: Sequence[RoundRecord], kind: str) -> float:
    """Mean number of rounds of a kind in a row, at least 1."""
    rows = [len(list(row)) for of, row in groupby(one.kind for one in rounds) if of == kind]
    return fmean(rows) if rows else 1.0


@dataclass(frozen=True, slots=True)
class AdaptiveTPScaleDown(AdaptiveTP):
    """Chooses the devices of a replica as a round begins, as `AdaptiveTP` does, and lends devices in it, as `ScaleDown` does.

    The sizes decide what can be lent: cells of the trainer on the devices of one replica are lent together or not at all. So
    two replicas of one device, each with a cell, lend one; one replica of both devices lends none. Resizes and loans never
    overlap: what is lent returns first.

        a round begins ──► resize, if its kind wants another size and nothing is lent
        milestone      ──► lend half of the cells, if the rest holds what is in flight
        a round ends   ──► return all; the resize waits until `FleetView.lent` is empty

    Args:
        max_tokens: most tokens of a response.
        first, last, every: milestones as shares of the samples that the round keeps: `first`, `first` + `every`, ... `last`.
        remembers: steps for which what a loan took counts: one that cost more than it brings is made again after so many; 0:
            all are made.

    Raises:
        LoadError: an option is out of its range; see `AdaptiveTP` for its own.
    """

    max_tokens: int = 16_384
    first: float = 0.2
    last: float = 0.5
    every: float = 0.05
    remembers: int = 8

    def __post_init__(self) -> None:
        AdaptiveTP.__post_init__(self)
        self._scale_down()

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """What `AdaptiveTP` asks for, and the longest response."""
        return {**AdaptiveTP.options_from(facts), "max_tokens": facts.max_tokens}

    def lends_devices(self) -> bool:
        """It lends devices to cells of the trainer, which must share them."""
        return True

    def round_milestones(self) -> Sequence[float]:
        """The shares at which it looks whether to lend."""
        return self._scale_down().round_milestones()

    def plan(self, view: FleetView) -> Sequence[FleetAction]:
        """Start the replicas; resize them, lend half of the devices, or take them back."""
        sized = () if view.lent else AdaptiveTP.plan(self, view)
        return sized or self._scale_down().plan(view)

    def _scale_down(self) -> ScaleDown:
        return ScaleDown(self.count, self.max_tokens, self.first, self.last, self.every, self.remembers)
