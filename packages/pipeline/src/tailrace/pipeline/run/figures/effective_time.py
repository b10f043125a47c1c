"""Effective training time (ETTR; RobustRL, sections 7.1 and 7.2): which share of a run's devices works, by its log
and the controller's view at each instant.

At a moment at which anything computes, it is the share of devices whose role does not recover: R / (R + T) while the trainer
alone does, for R devices of rollouts and T of the trainer. While nothing computes, since all wait for a restart, for weights, a
checkpoint's copy or a reshard, it is 0. The run's figure is the mean over its time, from the first moment at which anything
computed. `ettr` counts work that is done again, as the paper does; `ettr_strict` does not: neither a trainer's steps behind a
checkpoint that it falls back to, nor generation since the last batch that survived when a task starts over.

Devices of hybrids are the trainer's while they are lent to it, and their own otherwise: they recover with whoever has them.
A replica recovers while it has no complete weights, the trainer until it is up. A replica whose trajectories wait for an
environment takes part in rollouts. Devices of replicas that are gone for good count no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from tailrace import contracts as c
from tailrace.controller.members import REPLICA, TRAINER
from tailrace.controller.view import MemberRow

WINDOW_S = 300.0  # the paper samples every five minutes

_LOST = -1  # the version of a step that did not end
_OF_MEMBER = frozenset({c.Start, c.Restart, c.Stop, c.Up, c.Down})
_OF_REPLICA = frozenset({c.Resize, c.Pulled, c.PullFailed, c.Lend, c.Return})
_OF_WORK = frozenset({c.Step, c.Stepped, c.Accumulate, c.Accumulated, c.Route, c.Finished, c.Refused, c.Interrupted})
_OF_TURNS = frozenset({c.TurnEnded, c.Turned, c.CallFailed})
_SAYS = _OF_MEMBER | _OF_REPLICA | _OF_WORK | _OF_TURNS | {c.Abort, c.Resumed, c.Tick}
Span = tuple[float, float]


class EffectiveView(Protocol):
    """What of a `RunView` is asked."""

    @property
    def colocated(self) -> bool:
        """Whether the trainer stands on the devices of replicas."""

    @property
    def generates(self) -> bool:
        """Whether anybody generates, or waits for an environment."""

    def member(self, role: str, id_: str) -> MemberRow | None:
        """A member; None if it is gone for good."""


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
    """Follows devices and work of a run.

    Args:
        run: the controller's view. At each instant it must have taken the instant in already.
        trainer: devices of the trainer; none are its own where it stands on those of replicas.
    """

    def __init__(self, run: EffectiveView, trainer: int) -> None:
        self._run, self._own = run, 0 if run.colocated else trainer
        self._stands: dict[
            str, tuple[int, bool, bool]
        ] = {}  # of each replica: devices, whether it recovers, whether lent
        self._since: dict[str, float] = {}  # when that began
        self._trainer_since: float | None = None  # since when it recovers
        self._touched: dict[str, None] = {}
        self._steps: dict[int, tuple[float, int]] = {}  # begin and version of each command under way, by its number
        self._began: dict[int, float] = {}  # when the first command for a version was given
        self._checkpoint: int | None = None  # from which the trainer started last
        self._generates_s: float | None = None
        self._now = 0.0
        self._recoveries: list[tuple[float, float, int, bool]] = []
        self._loans: list[tuple[float, float, int]] = []
        self._generation: list[Span] = []
        self._training: list[tuple[float, float, int]] = []
        self._undone: list[Span] = []  # of the trainer
        self._wasted: list[Span] = []  # of rollouts
        self._totals: list[tuple[float, int]] = [(0.0, self._own)]
        self._hears: dict[type, Callable[[Any], None]] = {
            c.Step: self._works, c.Accumulate: self._works, c.Stepped: self._worked, c.Accumulated: self._worked,
            c.Restart: self._restarts, c.Up: self._up, c.Down: self._down, c.Abort: self._aborted,
        }  # fmt: skip

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """Take in one instant; `now` never decreases. One that says nothing of devices or work is left out."""
        if _SAYS.isdisjoint(map(type, events)) and _SAYS.isdisjoint(map(type, commands)):
            return
        self._now = now
        for each in (events, commands):
            for one in each:
                kind = type(one)
                if kind in _OF_REPLICA:
                    self._touched[one.replica] = None  # type: ignore[union-attr]
                elif kind in _OF_MEMBER and one.role == REPLICA:  # type: ignore[union-attr]
                    self._touched[one.id] = None  # type: ignore[union-attr]
                elif kind is c.Resumed:
                    self._touched.update(dict.fromkeys(self._stands))
                hear = self._hears.get(kind)
                if hear is not None:
                    hear(one)
        self._settle(now)

    def _settle(self, now: float) -> None:
        """The end of an instant."""
        run = self._run
        for name in self._touched:
            self._look(now, name, run.member(REPLICA, name))
        self._touched.clear()
        trainer = run.member(TRAINER, "0")
        if trainer is not None and trainer.health is not c.Health.UP:
            self._trainer_since = now if self._trainer_since is None else self._trainer_since
        elif self._trainer_since is not None:
            self._recoveries.append((self._trainer_since, now, self._own, True))
            self._trainer_since = None
        if run.generates != (self._generates_s is not None):
            if self._generates_s is not None:
                self._generation.append((self._generates_s, now))
            self._generates_s = now if run.generates else None

    def _look(self, now: float, name: str, row: MemberRow | None) -> None:
        """See what became of a replica. Whoever is gone for good has no devices."""
        before, after = self._stands.get(name), None
        if row is not None and row.devices and row.health is not c.Health.STOPPING:
            out = row.health in (c.Health.STARTING, c.Health.DOWN) or row.version is None
            after = row.devices, out, bool(row.cells)
        if before == after:
            return
        if before is not None:
            self._ends(now, name, *self._stands.pop(name))
        if after is not None:
            self._stands[name], self._since[name] = after, now
        total = self._own + sum([devices for devices, _, _ in self._stands.values()])
        if total != self._totals[-1][1]:
            self._totals.append((now, total))

    def _ends(self, now: float, name: str, devices: int, out: bool, lent: bool) -> None:
        since_s = self._since.pop(name)
        if out:
            self._recoveries.append((since_s, now, devices, False))
        if lent:
            self._loans.append((since_s, now, devices))

    # ---- work -----------------------------------------------------------------------------------------------------

    def _works(self, command: c.Step | c.Accumulate) -> None:
        self._steps[command.seq] = self._now, command.version
        self._began.setdefault(command.version, self._now)

    def _worked(self, event: c.Stepped | c.Accumulated) -> None:
        begun = self._steps.pop(event.answers, None) if event.answers is not None else None
        if begun is not None:
            # A command waits while weights are handed over and copied for a checkpoint, which is no work.
            begin_s = max(begun[0], self._now - event.metrics.get("wall_s", math.inf))
            self._training.append((begin_s, self._now, begun[1]))

    def _restarts(self, command: c.Restart) -> None:
        if command.role == TRAINER:
            self._trainer_ends()
            self._checkpoint = command.version

    def _up(self, event: c.Up) -> None:
        if event.role == TRAINER:
            kept = _LOST if event.version is None else event.version
            self._undone += [(begin, end) for begin, end, version in self._training if version > kept]

    def _down(self, event: c.Down) -> None:
        if event.role == TRAINER:
            self._trainer_ends()

    def _aborted(self, command: c.Abort) -> None:
        if command.reason.why is c.Why.TASK_RESTART and (not self._wasted or self._wasted[-1][1] < self._now):
            kept_s = 0.0 if self._checkpoint is None else self._began.get(self._checkpoint, 0.0)
            self._wasted.append((kept_s, self._now))

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
        now = [(self._since[name], end_s, *what) for name, what in self._stands.items()]
        recoveries = [*self._recoveries, *((since, end, devices, False) for since, end, devices, out, _ in now if out)]
        if self._trainer_since is not None:
            recoveries.append((self._trainer_since, end_s, self._own, True))
        loans = [*self._loans, *((since, end, devices) for since, end, devices, _, lent in now if lent)]
        recoveries += _with_the_trainer(recoveries, loans)
        first_s = min((begin for begin, _ in (*training, *generation)), default=end_s)
        edges = {first_s, end_s, *(at for at, _ in self._totals)}
        edges |= {edge for span in (*training, *generation, *self._undone, *self._wasted) for edge in span}
        edges |= {edge for begin, end, _, _ in recoveries for edge in (begin, end)}
        edges |= {first_s + number * window_s for number in range(1, math.ceil((end_s - first_s) / window_s))}
        sweep = _Sweep(self._own, training, generation, recoveries, self._undone, self._wasted, self._totals)
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
    recoveries: Sequence[tuple[float, float, int, bool]], loans: Sequence[tuple[float, float, int]]
) -> list[tuple[float, float, int, bool]]:
    """Devices of hybrids that recover since they are the trainer's, which does."""
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
