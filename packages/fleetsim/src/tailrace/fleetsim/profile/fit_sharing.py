"""Fits how members share the cores: how much each computes, and how much of a core it gets while others compute."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.fleetsim.profile.fit_training import thousand_tokens_s
from tailrace.fleetsim.profile.machine import SharingPart
from tailrace.fleetsim.profile.run import MeasuredRun
from tailrace.fleetsim.profile.samples import ClockReading
from tailrace.fleetsim.profile.timing import Timing

LEAST_S = 0.2  # least seconds of computing for a row of the table


@dataclass(frozen=True, slots=True)
class Shared:
    """How much of its cores a member got while a number of members computed.

    Args:
        members: number of members that computed at the same time, including this one.
        measured: processor time divided by time passed, over all of them.
        modelled: the same share in the simulator's processor sharing.
        seconds: for how long this was measured.
    """

    members: int
    measured: float
    modelled: float
    seconds: float


def fit_sharing(measured: MeasuredRun, replica: Timing, trainer: Timing) -> SharingPart:
    """The cores, and the share of all processor time that is not the replicas' or the trainer's computing."""
    (first, before), (last, after) = measured.usages[0], measured.usages[-1]
    began, ended = first + measured.zero_s, last + measured.zero_s
    all_s = sum(after.values()) - sum(spent for pid, spent in before.items() if pid in after)
    computed = [
        replica.processor_s(one.since, one.ended)
        for samples in measured.replicas.values()
        for one in samples.rounds
        if began <= one.ended.wall_s <= ended
    ]
    computed += [
        trainer.processor_s(one.began, one.ended)
        for one in measured.trainer.updates
        if began <= one.ended.wall_s <= ended
    ]
    return SharingPart(
        cores=measured.cores,
        others=min(1.0, max(0.0, 1.0 - sum(computed) / all_s)) if all_s > 0 else 0.0,
        replica_cores=replica.cores,
        trainer_cores=trainer.cores,
        alone_s=thousand_tokens_s(measured.trainer.sizes, trainer),
        beside_s=thousand_tokens_s(measured.trainer.updates[2:], trainer),
    )


def sharing_table(measured: MeasuredRun, replica: Timing, trainer: Timing, sharing: SharingPart) -> list[Shared]:
    """The cores that members got, by how many computed at once, beside those that the simulator gives them."""
    pieces = [[(one.since, one.ended, replica) for one in samples.rounds] for samples in measured.replicas.values()] + [
        [(one.began, one.ended, trainer) for one in measured.trainer.updates]
    ]
    got: dict[int, tuple[float, float]] = {}
    covers = [_Cover([(began, ended) for began, ended, _ in member]) for member in pieces]
    for index, member in enumerate(pieces):
        for began, ended, timing in member:
            passed_s = ended.wall_s - began.wall_s
            if passed_s <= 0:
                continue
            others = sum(
                cover.overlap_s(began.wall_s, ended.wall_s) / passed_s
                for other, cover in enumerate(covers)
                if other != index
            )
            members = 1 + round(others)
            spent_s, seconds = got.get(members, (0.0, 0.0))
            got[members] = (spent_s + timing.spent_s(began, ended), seconds + passed_s)
    free = sharing.cores * (1.0 - sharing.others)
    return [
        Shared(members, spent_s / seconds, min(1.0, free / members), seconds)
        for members, (spent_s, seconds) in sorted(got.items())
        if seconds >= LEAST_S
    ]


class _Cover:
    """The times in which a member computed: spans in order, without overlaps."""

    def __init__(self, spans: Sequence[tuple[ClockReading, ClockReading]]) -> None:
        self._began = [began.wall_s for began, _ in spans]
        self._ended = [ended.wall_s for _, ended in spans]

    def overlap_s(self, began: float, ended: float) -> float:
        first, last = bisect_right(self._ended, began), bisect_left(self._began, ended)
        return sum(min(ended, self._ended[at]) - max(began, self._began[at]) for at in range(first, last))
