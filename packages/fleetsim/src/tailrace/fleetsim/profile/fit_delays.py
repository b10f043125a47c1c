"""Fits delays that are not computing, from the run's commands, events and the clocks of its members."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from tailrace import contracts as c
from tailrace.controller.members import REPLICA, TRAINER
from tailrace.fleetsim.profile.fit_costs import thousand_tokens_s
from tailrace.fleetsim.profile.machine import DelaysPart, SharingPart, WeightsPart
from tailrace.fleetsim.profile.run import MeasuredRun
from tailrace.fleetsim.profile.samples import ClockReading, Timing, WorkSpan

LEAST_S = 0.2  # least seconds of computing for a row of the table
TRIMMED = 0.1  # share of the longest waits, which are left out since other work on the machine caused them


def fit_weights(measured: MeasuredRun, routes_s: float, computing: float) -> WeightsPart:
    """The delays of publishing and pulling.

    Args:
        measured: the run.
        routes_s: seconds for a command to reach a replica's engine, included in a pull.
        computing: seconds of computing per second of the trainer, since members share the cores.
    """
    published = {event.version: now for now, event in measured.log if isinstance(event, c.Published)}
    publishes = [command.version for _, command in measured.sent if isinstance(command, c.Publish)]
    handed = zip(publishes, measured.trainer.publishes, strict=False)
    revealed = {
        command.version: now + measured.zero_s for now, command in measured.sent if isinstance(command, c.Reveal)
    }
    # A sealed version waits for its checkpoint, which has seconds of its own.
    since = [(v, max(span.ended.wall_s, revealed.get(v, 0.0))) for v, span in handed]
    visible = [published[v] + measured.zero_s - at for v, at in since if v in published]
    pulls = _answers(measured, c.Pull, c.Pulled)
    return WeightsPart(
        publish_s=_typical(_passed(measured.trainer.publishes)) * computing,
        visible_s=max(0.0, _typical(visible)),
        pull_s=max(0.0, _typical(pulls) - routes_s),
    )


def fit_delays(measured: MeasuredRun, routes_s: float, computing: float, snapshot_s: float) -> DelaysPart:
    """The delays of commands, reports, scores, checkpoints and starts.

    Args:
        measured: the run.
        routes_s, computing: see `fit_weights`.
        snapshot_s: the configured seconds between snapshots.
    """
    reported: dict[str, list[float]] = defaultdict(list)  # the end of each turn
    answered: dict[str, float] = {}  # by an environment that ended the trajectory
    scored: dict[str, float] = {}
    for now, event in measured.log:
        if isinstance(event, c.Finished | c.TurnEnded):
            reported[event.trajectory].append(now + measured.zero_s)
        elif isinstance(event, c.Turned) and event.done:
            answered[event.trajectory] = now + measured.zero_s
        elif isinstance(event, c.Scored):
            scored[event.trajectory] = now + measured.zero_s
    ends: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for samples in measured.replicas.values():
        for name, at, idle in samples.finished:
            ends[name].append((at, idle))
    turns = [(told, *end) for name in ends for told, end in zip(reported[name], sorted(ends[name]), strict=False)]
    last = _typical([told - at for told, at, idle in turns if idle])
    complete = {name: answered[name] - last if name in answered else max(ends[name])[0] for name in ends}
    rewards = [
        scored[name] - at - measured.trajectories[name].score_s  # a simulated score has its own seconds
        for name, at in complete.items()
        if name in scored and _trained(measured, name)
    ]
    return DelaysPart(
        route_s=routes_s,
        report_s=max(0.001, 2 * last),
        snapshot_s=snapshot_s,
        score_s=max(0.0, _typical(rewards) - last),
        checkpoint_s=_typical(_passed(measured.trainer.checkpoints)) * computing,
        durable_s=_typical(_answers(measured, c.Checkpoint, c.Durable)),
        start_replica_s=_start_s(measured, REPLICA),
        start_trainer_s=_start_s(measured, TRAINER),
    )


def route_s(measured: MeasuredRun) -> float:
    """Seconds from a command until an idle engine has the trajectories."""
    waits = []
    for name, samples in measured.replicas.items():
        sent = [
            now + measured.zero_s
            for now, command in measured.sent
            if isinstance(command, c.Route) and command.replica == name
        ]
        ended = 0.0
        for one in samples.rounds:
            if one.fresh and one.since.wall_s > ended:  # it was idle, so this round's clock began with the submission
                before = [at for at in sent if at <= one.since.wall_s]
                if before and before[-1] > ended:
                    waits.append(one.since.wall_s - before[-1])
            ended = one.ended.wall_s
    return _typical(waits)


def _trained(measured: MeasuredRun, name: str) -> bool:
    """Whether a trajectory is for training. Evaluations are left out, since they are scored hundreds at a time."""
    return measured.trajectories[name].purpose is c.Purpose.TRAIN


def _answers(measured: MeasuredRun, command: type, event: type) -> list[float]:
    """Seconds from commands of a kind to the events that answer them."""
    sent = {sending.seq: now for now, sending in measured.sent if isinstance(sending, command)}
    answers = ((now, getattr(answer, "answers", None)) for now, answer in measured.log if isinstance(answer, event))
    return [now - sent[seq] for now, seq in answers if seq in sent]


def _start_s(measured: MeasuredRun, role: str) -> float:
    """Seconds of the slowest start of a role's member."""
    return max(
        (
            up - down
            for down, command in measured.sent
            if isinstance(command, c.Start) and command.role == role
            for up, event in measured.log
            if isinstance(event, c.Up) and event.answers == command.seq
        ),
        default=0.0,
    )


def _passed(spans: Iterable[WorkSpan]) -> list[float]:
    return [span.ended.wall_s - span.began.wall_s for span in spans]


def _typical(waits: Sequence[float]) -> float:
    """The mean without the longest tenth; 0 for none."""
    kept = sorted(waits)[: max(1, round((1 - TRIMMED) * len(waits)))] if waits else []
    return mean(kept) if kept else 0.0


# Fits how members share the cores: how much each computes, and how much of a core it gets while others compute.


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
