"""Alarms and advice about a run: what is wrong comes before what could be better. Pure: functions of the log and the view.

An alarm compares a run with its own past. No threshold is in seconds that another model or machine would not reach.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tailrace import contracts as c
from tailrace.controller.members import TRAINER
from tailrace.controller.view import RunView
from tailrace.pipeline.run.figures.folding import Hears
from tailrace.pipeline.run.figures.incidents import NoSignal
from tailrace.report.figures.verdict import without_signal
from tailrace.report.fold.folds import LiveFolds
from tailrace.report.fold.timeline import Doing, Span
from tailrace.report.reason_words import end, many

HISTORY, FEWEST = 256, 8  # phases that are remembered, and that say anything
LONGER = 2.0  # times the longest before
LEAST_S = 1.0
STORM_OF, STORM_FEWEST, STORM = (
    64,
    16,
    0.5,
)  # trajectories that are looked at, that say anything, the share that were dropped
BATCHES = 4
STARVED = 0.5  # of the time
MOST_NAMED = 3

_WORK = frozenset(Doing) - {Doing.IDLE, Doing.WAITING, Doing.HOLDING, Doing.DOWN}
_USUAL = frozenset(
    {
        c.Why.TRAINED,
        c.Why.NO_SIGNAL,
        c.Why.SURPLUS_SAMPLE,
        c.Why.SURPLUS_GROUP,
        c.Why.DEFERRED,
        c.Why.OVER,
        c.Why.EVALUATION,
        c.Why.LOST_IN_CRASH,
    }
)
"""Why trajectories are dropped where everything is as it should be."""


class Level(StrEnum):
    """How much an alarm matters."""

    ALARM = "alarm"
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that a person should see.

    Args:
        kind: a stable name.
        said: what is seen, in one sentence.
        since_s: since when, on the run's clock; None if that is not known.
    """

    level: Level
    kind: str
    said: str
    since_s: float | None = None


class Alarms:
    """Hears of what alarms are about, and remembers how long phases took."""

    def __init__(self, run: RunView, folds: LiveFolds) -> None:
        self.hears: Hears = {
            c.Abort: self._aborted,
            c.Finished: self._finished,
            c.Scored: self._scored,
            c.Down: self._down,
            c.Restart: self._restarts,
            c.Stop: self._restarts,
        }
        self._run, self._folds = run, folds
        self._took: dict[tuple[str, Doing], deque[float]] = {}
        self._seen = 0
        self._ended: deque[str] = deque(maxlen=STORM_OF)
        self._rewards: list[float] = []
        self._no_signal = NoSignal()
        self._differed: list[tuple[float, str]] = []

    def settle(self, now: float) -> None:
        """The end of an instant."""
        del now
        timeline = self._folds.timeline
        if timeline.count > self._seen:
            for span in timeline.ended(self._seen):
                self._took.setdefault((span.role, span.doing), deque(maxlen=HISTORY)).append(span.duration_s)
            self._seen = timeline.count
        if self._rewards:
            counts = self._run.counts
            self._no_signal.lines(counts.completed, counts.filtered_because.get(c.Why.NO_SIGNAL, 0), self._rewards)
            self._rewards.clear()

    def now(self, *, over: bool = False) -> list[Alarm]:
        """The alarms of this moment, and then advice.

        Args:
            over: whether the run has ended, so that nobody works or waits any more.
        """
        run = self._run
        over = over or run.finished or run.failure is not None
        found = [*self._broken(over=over), *self._differing(), *self._storm(), *self._signal()]
        found += [Alarm(Level.ADVICE, "noted", f"{text[0].upper()}{text[1:]}.") for text in run.notes()]
        if not over:
            found += [*self._longer(), *self._starved()]
        return sorted(found, key=lambda alarm: alarm.level is Level.ADVICE)

    def _broken(self, *, over: bool) -> Iterator[Alarm]:
        run = self._run
        if run.failure is not None:
            yield Alarm(Level.ALARM, "failed", f"The run failed: {run.failure}")
        out = [outage for outage in self._folds.outages.all[-HISTORY:] if outage.up_s is None]
        if out and not over:
            starting = {(one["role"], one["id"]) for one in run.members_down() if one["health"] == c.Health.STARTING}
            names: dict[str, list[str]] = {"Down": [], "Restarting": []}
            for each in out:
                doing = "Restarting" if (each.role, each.member) in starting else "Down"
                names[doing].append(f"{each.role} {each.member}")
            said = " ".join(f"{doing}: {_named(some)}." for doing, some in names.items() if some)
            yield Alarm(Level.ALARM, "down", f"{said} Last: {out[-1].reason}.", out[-1].at_s)
        if run.contradictions:
            snapshots = many(run.contradictions, "snapshot")
            said = f"{snapshots} of replicas contradict the controller: a fault of Tailrace or an engine."
            yield Alarm(Level.ALARM, "contradictions", said)

    def _differing(self) -> Iterator[Alarm]:
        if self._differed:
            at_s, who = self._differed[-1]
            times = many(len(self._differed), "time")
            said = f"Weights in an engine differed from those that were published, {times}; last in replica {who}."
            yield Alarm(Level.ALARM, "digests", said, at_s)

    def _storm(self) -> Iterator[Alarm]:
        dropped = Counter(reason for reason in self._ended if reason)
        if len(self._ended) >= STORM_FEWEST and dropped.total() >= STORM * len(self._ended):
            reasons = ", ".join(f"{count} {end(reason)}" for reason, count in dropped.most_common(MOST_NAMED))
            said = f"{dropped.total()} of the last {len(self._ended)} trajectories were dropped: {reasons}."
            yield Alarm(Level.ALARM, "aborts", said)

    def _signal(self) -> Iterator[Alarm]:
        said = self._no_signal.warning or without_signal(self._folds.batches.signals)
        if said:
            yield Alarm(Level.ALARM, "no-signal", said[0].upper() + said[1:])

    def _longer(self) -> Iterator[Alarm]:
        late: dict[tuple[str, Doing], list[tuple[Span, float]]] = {}
        for span in self._folds.timeline.open(self._run.now):
            before = self._took.get((span.role, span.doing), ())
            if span.doing in _WORK and len(before) >= FEWEST:
                longest = max(before)
                if span.duration_s > max(LEAST_S, LONGER * longest):
                    late.setdefault((span.role, span.doing), []).append((span, longest))
        for (role, doing), found in late.items():
            span, longest = max(found, key=lambda one: one[0].duration_s)
            names = _named([f"{role} {one.member}" for one, _ in found])
            is_ = "is" if len(found) == 1 else "are"
            said = (
                f"{names} {is_} {doing} for {span.duration_s:.3g} s; the longest of "
                f"{len(self._took[role, doing])} times before took {longest:.3g} s."
            )
            yield Alarm(Level.ALARM, "long-phase", said, span.start_s)

    def _starved(self) -> Iterator[Alarm]:
        """A trainer that waits for longer than ever is an alarm; one that waits for most of the time is advised."""
        waits = [
            span
            for span in self._folds.timeline.open(self._run.now)
            if (span.role, span.doing) == (TRAINER, Doing.WAITING)
        ]
        before = self._took.get((TRAINER, Doing.WAITING), ())
        for span in waits:
            if len(before) >= FEWEST and span.duration_s > max(LEAST_S, LONGER * max(before)):
                said = (
                    f"The trainer has waited for {span.duration_s:.3g} s ({span.label}); the longest of {len(before)} waits "
                    f"before took {max(before):.3g} s."
                )
                yield Alarm(Level.ALARM, "starved", said, span.start_s)
                return
        ends = [batch.ended_s for batch in self._folds.batches.trained[-BATCHES - 1 :]]
        if len(ends) > BATCHES:
            spans = [*self._folds.timeline.ended(max(0, self._seen - 20 * HISTORY)), *waits]
            idle = [one for one in spans if (one.role, one.doing) == (TRAINER, Doing.WAITING) and one.end_s > ends[0]]
            share = sum(one.end_s - max(one.start_s, ends[0]) for one in idle) / max(self._run.now - ends[0], 1e-9)
            if share >= STARVED:
                cause = Counter[str]()
                for one in idle:
                    cause[one.label] += round(1000 * one.duration_s)
                most = cause.most_common(1)[0][0]
                said = f"The trainer waited for {share:.0%} of the time of the last {BATCHES} steps: {most}."
                yield Alarm(Level.ADVICE, "starved", said, ends[0])

    def _aborted(self, now: float, command: c.Abort) -> None:
        del now
        if command.reason.why not in _USUAL:
            self._ended.extend([str(command.reason.why)] * len(command.trajectories))

    def _finished(self, now: float, event: c.Finished) -> None:
        del now, event
        self._ended.append("")

    def _scored(self, now: float, event: c.Scored) -> None:
        del now
        self._rewards.append(event.reward)

    def _down(self, now: float, event: c.Down) -> None:
        if event.cause is c.Cause.WEIGHTS:
            self._differed.append((now, event.id))

    def _restarts(self, now: float, command: c.Restart | c.Stop) -> None:
        if command.reason.why is c.Why.DIFFERS and (now, command.id) not in self._differed:
            self._differed.append((now, command.id))


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
