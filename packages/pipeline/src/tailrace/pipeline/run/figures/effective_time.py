"""Effective training time (ETTR; RobustRL, sections 7.1 and 7.2): which share of a run's devices works, folded from its log.

At a moment at which anything computes, it is the share of devices whose role does not recover: R / (R + T) while the trainer
alone does, for R devices of rollouts and T of the trainer. While nothing computes, since all wait for a restart, for weights, a
checkpoint's copy or a reshard, it is 0. The run's figure is the mean over its time, from the first moment at which anything
computed. `ettr` counts work that is done again, as the paper does; `ettr_strict` does not: neither a trainer's steps behind a
checkpoint that it falls back to, nor generation since the last batch that survived when a task starts over.

Devices of hybrids are the trainer's while they are lent to it, and their own otherwise: they recover with whoever has them.
A replica recovers until it has complete weights, the trainer until it is up. A replica whose trajectories wait for an
environment takes part in rollouts. Devices of replicas that are gone for good count no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tailrace import contracts as c
from tailrace.controller.members import REPLICA, TRAINER
from tailrace.controller.spec import PipelineSpec

WINDOW_S = 300.0  # the paper samples every five minutes

_LOST = -1  # the version of a step that did not end
Key = tuple[str, str]
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class RoleDevices:
    """How many devices a role has.

    Args:
        trainer: the trainer's own; 0 if it stands on those of replicas.
        replica: of a replica of the run's start, by its pool; the name of the pool is empty where all are alike.
    """

    trainer: int
    replica: Mapping[str, int]

    @classmethod
    def of(cls, spec: PipelineSpec, trainer: int) -> RoleDevices:
        """Devices of a pipeline whose trainer has this many."""
        return cls(0 if spec.colocated else trainer, {"": spec.tp} | {pool.name: pool.tp for pool in spec.pools})


@dataclass(frozen=True, slots=True)
class EffectiveFigures:
    """Effective training time of a run.

    Args:
        ettr: with work that was done again.
        ettr_strict: without.
        sliding: end of each window of five minutes in seconds on the run's clock, and both figures of it.
    """

    ettr: float = 0.0
    ettr_strict: float = 0.0
    sliding: tuple[tuple[float, float, float], ...] = ()

    def plain(self) -> dict[str, Any]:
        """The figures as keys of ``summary.json``."""
        return {"ettr": round(self.ettr, 4), "ettr_strict": round(self.ettr_strict, 4)}


class EffectiveTime:
    """Follows devices and work through a log.

    Args:
        devices: how many each role has.
    """

    def __init__(self, devices: RoleDevices) -> None:
        self._own = devices
        self._devices: dict[Key, int] = {(TRAINER, "0"): devices.trainer}
        self._absent: dict[Key, float] = {}  # since when a member recovers
        self._fresh: set[Key] = set()  # replicas that are up and have no weights yet
        self._ended: dict[Key, float] = {}  # members that went down and of which no restart was seen yet
        self._lent: dict[str, tuple[float, int]] = {}  # since when a replica's devices are the trainer's, and how many
        self._loans: list[tuple[float, float, int]] = []
        self._runs: dict[str, str] = {}  # the replica of each trajectory in flight
        self._held: dict[str, set[str]] = {}
        self._steps: dict[int, tuple[float, int]] = {}  # begin and version of each command under way, by its number
        self._began: dict[int, float] = {}  # when the first command for a version was given
        self._checkpoint: int | None = None  # from which the trainer started last
        self._generates_s: float | None = None
        self._now = 0.0
        self._recoveries: list[tuple[float, float, int, bool]] = []
        self._generation: list[Span] = []
        self._training: list[tuple[float, float, int]] = []
        self._undone: list[Span] = []  # of the trainer
        self._wasted: list[Span] = []  # of rollouts
        self._totals: list[tuple[float, int]] = [(0.0, devices.trainer)]

    @property
    def hears(self) -> dict[type, Callable[[float, Any], None]]:
        """The events and commands that it follows: each is taken with its time, in seconds on the run's clock."""
        found: dict[type, Callable[[Any], None]] = {
            c.Start: self._starts, c.Restart: self._starts, c.Resize: self._resizes, c.Stop: self._stops,
            c.Up: self._up, c.Pulled: self._pulled, c.Down: self._down, c.Route: self._routed,
            c.Finished: self._left, c.Refused: self._left, c.Interrupted: self._left, c.CallFailed: self._left,
            c.Turned: self._turned, c.Abort: self._aborted, c.Step: self._works, c.Accumulate: self._works,
            c.Stepped: self._worked, c.Accumulated: self._worked, c.Tick: lambda _: None,
            c.Lend: self._lends, c.Return: lambda command: self._returns(command.replica),
        }  # fmt: skip
        return {kind: self._at(hear) for kind, hear in found.items()}

    def _at(self, hear: Callable[[Any], None]) -> Callable[[float, Any], None]:
        def at(now: float, one: Any) -> None:
            if now > self._now:
                self._settle()
                self._now = now
            hear(one)

        return at

    def _settle(self) -> None:
        """The instant is over: who went down and is not restarted is gone for good."""
        for key, at_s in self._ended.items():
            self._gone(key, at_s)
        self._ended.clear()

    # ---- members --------------------------------------------------------------------------------------------------

    def _starts(self, command: c.Start | c.Restart) -> None:
        key = command.role, command.id
        if command.role not in (TRAINER, REPLICA):
            return
        self._ended.pop(key, None)
        if command.role == REPLICA:
            of_pool = self._own.replica.get(command.place.pool, self._own.replica[""])
            self._sized(key, command.tp or of_pool)
            self._replica_ends(command.id)
        elif isinstance(command, c.Restart):
            self._trainer_ends()
            self._checkpoint = command.version
        self._absent.setdefault(key, self._now)
        self._fresh.discard(key)

    def _resizes(self, command: c.Resize) -> None:
        key = REPLICA, command.replica
        self._replica_ends(command.replica)
        self._sized(key, command.tp)
        self._absent.setdefault(key, self._now)
        self._fresh.discard(key)

    def _stops(self, command: c.Stop) -> None:
        if command.role == REPLICA:
            self._replica_ends(command.id)
            self._gone((REPLICA, command.id), self._now)

    def _lends(self, command: c.Lend) -> None:
        if command.replica not in self._lent:
            self._lent[command.replica] = self._now, self._devices.get((REPLICA, command.replica), 0)

    def _returns(self, replica: str) -> None:
        loan = self._lent.pop(replica, None)
        if loan is not None:
            self._loans.append((loan[0], self._now, loan[1]))

    def _up(self, event: c.Up) -> None:
        key = event.role, event.id
        if event.role == TRAINER:
            self._serves(key)
            kept = _LOST if event.version is None else event.version
            self._undone += [(begin, end) for begin, end, version in self._training if version > kept]
        elif key in self._absent:
            self._fresh.add(key)

    def _pulled(self, event: c.Pulled) -> None:
        key = REPLICA, event.replica
        if key in self._fresh:
            self._fresh.discard(key)
            self._serves(key)

    def _down(self, event: c.Down) -> None:
        key = event.role, event.id
        if event.role == TRAINER:
            self._trainer_ends()
        elif event.role == REPLICA:
            self._replica_ends(event.id)
        if key in self._devices and event.cause is not c.Cause.STOPPED:
            self._absent.setdefault(key, self._now)
            self._ended[key] = self._now

    def _serves(self, key: Key) -> None:
        since_s = self._absent.pop(key, None)
        if since_s is not None:
            self._recoveries.append((since_s, self._now, self._devices[key], key[0] == TRAINER))

    def _sized(self, key: Key, devices: int) -> None:
        if self._devices.get(key) != devices:
            self._serves(key)  # what it recovered with so far
            self._devices[key] = devices
            self._totals.append((self._now, sum(self._devices.values())))

    def _gone(self, key: Key, at_s: float) -> None:
        if key in self._devices and key[0] == REPLICA:
            since_s = self._absent.pop(key, at_s)
            self._recoveries.append((since_s, at_s, self._devices.pop(key), False))
            self._totals.append((at_s, sum(self._devices.values())))
            self._fresh.discard(key)

    # ---- work -----------------------------------------------------------------------------------------------------

    def _routed(self, command: c.Route) -> None:
        held = self._held.setdefault(command.replica, set())
        for ref in command.trajectories:
            before = self._runs.get(ref.trajectory)
            if before is not None:
                self._held[before].discard(ref.trajectory)
            self._runs[ref.trajectory] = command.replica
            held.add(ref.trajectory)
        if self._generates_s is None and self._runs:
            self._generates_s = self._now

    def _leaves(self, names: Iterable[str]) -> None:
        for name in names:
            replica = self._runs.pop(name, None)
            if replica is not None:
                self._held[replica].discard(name)
        if self._generates_s is not None and not self._runs:
            self._generation.append((self._generates_s, self._now))
            self._generates_s = None

    def _left(self, event: c.Finished | c.Refused | c.Interrupted | c.CallFailed) -> None:
        self._leaves((event.trajectory,))

    def _turned(self, event: c.Turned) -> None:
        if event.done:
            self._leaves((event.trajectory,))

    def _aborted(self, command: c.Abort) -> None:
        self._leaves(command.trajectories)
        if command.reason.why is c.Why.TASK_RESTART and (not self._wasted or self._wasted[-1][1] < self._now):
            kept_s = 0.0 if self._checkpoint is None else self._began.get(self._checkpoint, 0.0)
            self._wasted.append((kept_s, self._now))

    def _replica_ends(self, replica: str) -> None:
        self._returns(replica)  # a new process has its devices
        self._leaves(tuple(self._held.get(replica, ())))

    def _works(self, command: c.Step | c.Accumulate) -> None:
        self._steps[command.seq] = self._now, command.version
        self._began.setdefault(command.version, self._now)

    def _worked(self, event: c.Stepped | c.Accumulated) -> None:
        begun = self._steps.pop(event.answers, None) if event.answers is not None else None
        if begun is not None:
            # A command waits while weights are handed over and copied for a checkpoint, which is no work.
            begin_s = max(begun[0], self._now - event.metrics.get("wall_s", math.inf))
            self._training.append((begin_s, self._now, begun[1]))

    def _trainer_ends(self) -> None:
        for begin_s, _ in self._steps.values():
            self._training.append((begin_s, self._now, _LOST))
            self._undone.append((begin_s, self._now))
        self._steps.clear()

    # ---- figures --------------------------------------------------------------------------------------------------

    def figures(self, window_s: float = WINDOW_S) -> EffectiveFigures:
        """What was found so far.

        Args:
            window_s: seconds of a sliding window.
        """
        end_s = self._now
        training = [(begin, end) for begin, end, _ in self._training] + [(at, end_s) for at, _ in self._steps.values()]
        generation = [*self._generation, *([(self._generates_s, end_s)] if self._generates_s is not None else ())]
        recoveries = [
            *self._recoveries,
            *((since, end_s, self._devices[key], key[0] == TRAINER) for key, since in self._absent.items()),
        ]
        recoveries += self._with_the_trainer(recoveries, end_s)
        first_s = min((begin for begin, _ in (*training, *generation)), default=end_s)
        edges = {first_s, end_s, *(at for at, _ in self._totals)}
        edges |= {edge for span in (*training, *generation, *self._undone, *self._wasted) for edge in span}
        edges |= {edge for begin, end, _, _ in recoveries for edge in (begin, end)}
        edges |= {first_s + number * window_s for number in range(1, math.ceil((end_s - first_s) / window_s))}
        sweep = _Sweep(self._own.trainer, training, generation, recoveries, self._undone, self._wasted, self._totals)
        ordered = sorted(edge for edge in edges if first_s <= edge <= end_s)
        whole = strict = span = span_strict = 0.0
        sliding: list[tuple[float, float, float]] = []
        opened_s = first_s
        for begin, end in pairwise(ordered):
            effective, kept = sweep.at(begin)
            whole, strict = whole + effective * (end - begin), strict + kept * (end - begin)
            span, span_strict = span + effective * (end - begin), span_strict + kept * (end - begin)
            if end - opened_s >= window_s * (1 - 1e-9) or end == end_s:
                sliding.append((end, span / (end - opened_s), span_strict / (end - opened_s)))
                opened_s, span, span_strict = end, 0.0, 0.0
        seconds = end_s - first_s
        if seconds <= 0:
            return EffectiveFigures()
        return EffectiveFigures(whole / seconds, strict / seconds, tuple(sliding))

    def _with_the_trainer(
        self, recoveries: Sequence[tuple[float, float, int, bool]], end_s: float
    ) -> list[tuple[float, float, int, bool]]:
        """Devices of hybrids that recover since they are the trainer's, which does."""
        loans = [*self._loans, *((since_s, end_s, devices) for since_s, devices in self._lent.values())]
        found = []
        for begin_s, until_s, _, own in recoveries:
            for lent_s, back_s, devices in loans if own else ():
                begin, end = max(begin_s, lent_s), min(until_s, back_s)
                if begin < end:
                    found.append((begin, end, devices, False))
        return found


class _Sweep:
    """Asked for moments in ascending order, whether spans hold then; each list is sorted once."""

    def __init__(
        self,
        trainer: int,
        training: Iterable[Span],
        generation: Iterable[Span],
        recoveries: Iterable[tuple[float, float, int, bool]],
        undone: Iterable[Span],
        wasted: Iterable[Span],
        totals: Iterable[tuple[float, int]],
    ) -> None:
        self._trainer = trainer
        known = list(recoveries)
        self._spans = {
            "training": _Counting((begin, end, 1) for begin, end in training),
            "generation": _Counting((begin, end, 1) for begin, end in generation),
            "undone": _Counting((begin, end, 1) for begin, end in undone),
            "wasted": _Counting((begin, end, 1) for begin, end in wasted),
            "rollouts away": _Counting((begin, end, devices) for begin, end, devices, own in known if not own),
            "trainer away": _Counting((begin, end, 1) for begin, end, _, own in known if own),
        }
        self._totals, self._place = sorted(totals, key=lambda total: total[0]), 0

    def at(self, moment: float) -> tuple[float, float]:
        """The share of devices that works, with what is done again and without."""
        while self._place + 1 < len(self._totals) and self._totals[self._place + 1][0] <= moment:
            self._place += 1
        total = self._totals[self._place][1]
        found = {name: counting.at(moment) for name, counting in self._spans.items()}
        trains, generates = found["training"] > 0, found["generation"] > 0
        if not (trains or generates) or not total:
            return 0.0, 0.0
        trainer = 0 if found["trainer away"] else self._trainer
        rollouts = total - self._trainer - found["rollouts away"]
        kept_trainer = 0 if found["undone"] else trainer
        kept_rollouts = 0 if found["wasted"] else rollouts
        useful = (trains and not found["undone"]) or (generates and not found["wasted"])
        return (trainer + rollouts) / total, (kept_trainer + kept_rollouts) / total if useful else 0.0


class _Counting:
    """The sum of weights of the spans that hold at a moment; moments ascend."""

    def __init__(self, spans: Iterable[tuple[float, float, int]]) -> None:
        changes: dict[float, int] = {}
        for begin, end, weight in spans:
            changes[begin] = changes.get(begin, 0) + weight
            changes[end] = changes.get(end, 0) - weight
        self._changes = sorted(changes.items())
        self._place = self._sum = 0

    def at(self, moment: float) -> int:
        """The sum now."""
        while self._place < len(self._changes) and self._changes[self._place][0] <= moment:
            self._sum += self._changes[self._place][1]
            self._place += 1
        return self._sum
