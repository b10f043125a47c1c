"""All that is folded from a log, instant by instant: while a simulation runs, or from the file of any run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace import contracts as c
from tailrace.controller.members import REPLICA
from tailrace.controller.view import RunView
from tailrace.pipeline.run.figures.batches import Batch
from tailrace.pipeline.run.figures.detection import DetectionFold
from tailrace.pipeline.run.figures.effective_time import EffectiveTime
from tailrace.pipeline.run.figures.faults import FaultFold
from tailrace.pipeline.run.figures.folding import Audience, Hears
from tailrace.pipeline.run.figures.replicas import ReplicaFigures
from tailrace.pipeline.run.figures.rounds import RoundFigures
from tailrace.report.figures.verdict import Signal
from tailrace.report.fold.interruptions import Interruptions
from tailrace.report.fold.loads import Loads
from tailrace.report.fold.outages import Outages
from tailrace.report.fold.timeline import Timeline
from tailrace.report.fold.turns import TurnFold

MOST_REPLICAS = 256


class LiveFolds:
    """Observes a log for a page that shows a run while it goes on: what members do, their loads, batches and outages.

    Of a large fleet, timeline and loads are those of some replicas, evenly chosen.

    Args:
        run: the controller's view of the run. At each instant it must have taken the instant in already.
        most: replicas that are looked at.
    """

    def __init__(self, run: RunView, *, most: int = MOST_REPLICAS) -> None:
        self.run, self.batches = run, TrainedBatches(run)
        self.interruptions, self.loads, self.outages = Interruptions(run), Loads(run), Outages()
        self.timeline = Timeline(run, self.interruptions, self.outages)
        self._audience = Audience(self.loads, self.batches, self.interruptions, self.outages, self.timeline)
        self._most = most

    @property
    def replicas(self) -> tuple[str, ...]:
        """Replicas that are looked at."""
        return self.loads.replicas

    @property
    def sampled(self) -> bool:
        """Whether that is only some."""
        return len(self.loads.replicas) < self.loads.of

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """One instant; `now` in seconds never decreases."""
        if not self.loads.replicas:
            names = [id_ for role, id_ in self.run.members() if role == REPLICA]
            self.loads.watch(evenly(names, self._most), names)
            self.timeline.only = frozenset(self.loads.replicas) if self.sampled else None
        self._audience.observe(now, events, commands)
        self.batches.settle(now)
        self.loads.settle(now)
        self.timeline.settle(now)

    def close(self) -> None:
        """The log ends here."""
        self.timeline.close(self.run.now)
        self.loads.close()


class Folds(LiveFolds):
    """Observes a log for a report of the whole run.

    Args:
        run, most: see `LiveFolds`.
        trainer_devices: devices of the trainer.
    """

    def __init__(self, run: RunView, *, most: int = MOST_REPLICAS, trainer_devices: int = 1) -> None:
        super().__init__(run, most=most)
        spec = run.spec
        self.versions, self.offcuts, self.turns = Versions(), Offcuts(run), TurnFold(run)
        self.faults, self.detection = FaultFold(), DetectionFold(spec.detection)
        self.effective_time = EffectiveTime(run, trainer_devices)
        self.rounds, self.came_and_went = RoundFigures(spec), ReplicaFigures()
        self._others = Audience(self.versions, self.offcuts, self.turns, self.faults, self.detection)

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """One instant; `now` in seconds never decreases."""
        super().observe(now, events, commands)
        self._others.observe(now, events, commands)
        self.effective_time.observe(now, events, commands)
        self.came_and_went.observe(now, events, commands)
        if self.rounds.used:
            self.rounds.observe(now, events, commands)
        self.offcuts.settle()
        self.turns.settle(now)

    def close(self) -> None:
        """The log ends here."""
        super().close()
        self.turns.close()


def evenly(names: Sequence[str], most: int) -> list[str]:
    """At most `most` names, evenly chosen, in their order."""
    count = min(len(names), most)
    return [names[place * len(names) // count] for place in range(count)]


class TrainedBatches:
    """Hears of every batch that is given to the trainer.

    `occupancy` holds what the buffer held each time that it changed: when, groups that are complete, groups that are generated.
    `truncated` counts the responses of each batch that a limit ended, `signals` says what it had to learn from.
    """

    def __init__(self, run: RunView) -> None:
        self.hears: Hears = {c.Step: self._given, c.Stepped: self._trained}
        self.begun: dict[int, Batch] = {}
        self.truncated: dict[int, int] = {}
        self.signals: dict[int, Signal] = {}
        self.occupancy: list[tuple[float, int, int]] = []
        self._run = run

    @property
    def trained(self) -> list[Batch]:
        """The batches behind the trainer's weights, in order: those that a crash undid are left out."""
        kept = [batch for version, batch in self.begun.items() if self._run.made(version)]
        return sorted((batch for batch in kept if batch.ended_s < math.inf), key=lambda batch: batch.version)

    def settle(self, now: float) -> None:
        """The end of an instant."""
        counts = (self._run.buffered, self._run.started)
        if not self.occupancy or self.occupancy[-1][1:] != counts:
            self.occupancy.append((now, *counts))

    def _given(self, now: float, command: c.Step) -> None:
        version = command.version
        members = list(self._run.batch(version))
        self.truncated[version] = sum(each.truncated for each in members)
        self.begun[version] = Batch.of(version, self._run.version, members, now)
        self.signals[version] = Signal.of(members)

    def _trained(self, now: float, event: c.Stepped) -> None:
        if event.version in self.begun:
            self.begun[event.version].ended_s = now


@dataclass(slots=True)
class Version:
    """A published weight version: when it was ordered, when the relays held it, how replicas pulled it."""

    version: int
    ordered_s: float
    published_s: float | None = None
    pulls_s: list[float] = field(default_factory=list)


class Versions:
    """Hears of every version that is published or pulled."""

    def __init__(self) -> None:
        self.hears: Hears = {
            c.Publish: self._ordered,
            c.Published: self._published,
            c.Pull: self._pulls,
            c.Pulled: self._pulled,
            c.Up: self._up,
        }
        self.ordered: dict[int, Version] = {}
        self.first_pulled_s: float | None = None
        self._pulling: dict[str, float] = {}

    def _ordered(self, now: float, command: c.Publish) -> None:
        self.ordered.setdefault(command.version, Version(command.version, now))

    def _published(self, now: float, event: c.Published) -> None:
        version = self.ordered.get(event.version)
        if version is not None and version.published_s is None:
            version.published_s = now

    def _pulls(self, now: float, command: c.Pull) -> None:
        self._pulling[command.replica] = now

    def _pulled(self, now: float, event: c.Pulled) -> None:
        self.first_pulled_s = now if self.first_pulled_s is None else self.first_pulled_s
        ordered_s = self._pulling.pop(event.replica, None)
        if ordered_s is not None and event.version in self.ordered:
            self.ordered[event.version].pulls_s.append(now - ordered_s)

    def _up(self, now: float, event: c.Up) -> None:
        del now
        if event.role == REPLICA:
            self._pulling.pop(event.id, None)


class Offcuts:
    """Counts the tokens of training trajectories that were dropped, without observations.

    `finished` lists the tokens of complete trajectories by the reason of the drop, `unfinished` those of the others.
    A surplus sample that ends together with the last that its group needs was complete, though the controller had dropped it.
    """

    def __init__(self, run: RunView) -> None:
        self.hears: Hears = {c.Finished: self._ended, c.Turned: self._answered}
        self.finished: dict[c.Why, list[int]] = {}
        self.unfinished: list[int] = []
        self._run = run
        self._ended_now: dict[str, int | None] = {}  # in this instant, with all tokens; None if an environment ended it

    def settle(self) -> None:
        """The end of an instant."""
        for states, reason in self._run.brought.dropped:
            for state in states:
                tokens = self._ended_now.get(state.id)
                length = state.generated if tokens is None or state.finished else tokens - state.observed
                if state.finished or state.id in self._ended_now:
                    self.finished.setdefault(reason.why, []).append(length)
                else:
                    self.unfinished.append(length)
        self._ended_now.clear()

    def _ended(self, now: float, event: c.Finished) -> None:
        del now
        self._ended_now[event.trajectory] = event.tokens

    def _answered(self, now: float, event: c.Turned) -> None:
        del now
        if event.done:
            self._ended_now[event.trajectory] = None
