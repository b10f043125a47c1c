"""All that is folded from a log, instant by instant: while a simulation runs, or from the file of any run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace import contracts as c
from tailrace.controller.evaluations import EvaluationResult
from tailrace.controller.members import REPLICA
from tailrace.controller.spec import PipelineSpec
from tailrace.controller.view import BatchMember
from tailrace.pipeline.run.figures.detection import DetectionFold
from tailrace.pipeline.run.figures.effective_time import EffectiveTime, RoleDevices
from tailrace.pipeline.run.figures.faults import FaultFold
from tailrace.pipeline.run.figures.figures import Batch, standard_error
from tailrace.pipeline.run.figures.folding import Audience, Hears
from tailrace.pipeline.run.figures.replicas import ReplicaFigures
from tailrace.pipeline.run.figures.rounds import RoundFigures
from tailrace.report.fold.history import History
from tailrace.report.fold.interruptions import Interruptions
from tailrace.report.fold.loads import Loads
from tailrace.report.fold.timeline import Timeline
from tailrace.report.fold.whereabouts import Whereabouts

MOST_REPLICAS = 256


class Folds:
    """Observes a log. Of a large fleet, timeline and loads are those of some replicas, evenly chosen.

    Args:
        spec: the pipeline.
        first: the version that the run began with.
        most: replicas that are looked at.
        trainer_devices: devices of the trainer.
    """

    def __init__(
        self, spec: PipelineSpec, *, first: int = 0, most: int = MOST_REPLICAS, trainer_devices: int = 1
    ) -> None:
        self.history = history = History(spec, first=first)
        self.batches, self.versions, self.evaluations = TrainedBatches(history), Versions(), EvaluationFold(history)
        self.interruptions, self.loads = Interruptions(history), Loads(history)
        self.timeline = Timeline(history, self.interruptions)
        self.faults, self.detection = FaultFold(), DetectionFold(spec.detection)
        self.effective_time = EffectiveTime(RoleDevices.of(spec, trainer_devices))
        self.rounds, self.came_and_went, self.whereabouts = RoundFigures(spec), ReplicaFigures(), Whereabouts(history)
        folds = (
            self.loads,
            self.batches,
            self.versions,
            self.evaluations,
            self.interruptions,
            self.timeline,
            self.whereabouts,
            self.faults,
            self.detection,
            self.effective_time,
        )
        self._audience = Audience(*folds)
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
        history = self.history
        history.observe(now, events, commands)
        if not self.loads.replicas:
            names = [id_ for role, id_ in history.members if role == REPLICA]
            self.loads.watch(evenly(names, self._most), names)
            self.timeline.only = frozenset(self.loads.replicas) if self.sampled else None
        self._audience.observe(now, events, commands)
        self.came_and_went.observe(now, events, commands)
        if self.rounds.used:
            self.rounds.observe(now, events, commands)
        self.batches.settle(now)
        self.loads.settle(now)
        self.timeline.settle(now)

    def close(self) -> None:
        """The log ends here."""
        self.timeline.close(self.history.now)
        self.loads.close()
        self.whereabouts.close()


def evenly(names: Sequence[str], most: int) -> list[str]:
    """At most `most` names, evenly chosen, in their order."""
    count = min(len(names), most)
    return [names[place * len(names) // count] for place in range(count)]


class TrainedBatches:
    """Hears of every batch that is given to the trainer.

    `occupancy` holds what the buffer held each time that it changed: when, groups that are complete, groups that are generated.
    `truncated` counts the responses of each batch that a limit ended. `reward_errors` holds the standard error of each batch's
    mean reward, clustered by prompt.
    """

    def __init__(self, history: History) -> None:
        self.hears: Hears = {c.Step: self._given, c.Stepped: self._trained}
        self.begun: dict[int, Batch] = {}
        self.truncated: dict[int, int] = {}
        self.reward_errors: dict[int, float] = {}
        self.occupancy: list[tuple[float, int, int]] = []
        self._history = history

    @property
    def trained(self) -> list[Batch]:
        """The batches behind the trainer's weights, in order: those that a crash undid are left out."""
        kept = [batch for version, batch in self.begun.items() if version in self._history.made]
        return sorted((batch for batch in kept if batch.ended_s < math.inf), key=lambda batch: batch.version)

    def settle(self, now: float) -> None:
        """The end of an instant."""
        counts = (self._history.buffered, self._history.generating)
        if not self.occupancy or self.occupancy[-1][1:] != counts:
            self.occupancy.append((now, *counts))

    def _given(self, now: float, command: c.Step) -> None:
        version, history = command.version, self._history
        members = history.batch(version)
        generated = [BatchMember(each.version or 0, each.completed_at, each.generated) for each in members]
        self.truncated[version] = sum(each.truncated for each in members)
        self.begun[version] = Batch.of(version, history.version, generated, now)
        scored = [(member.reward, member.ref.prompt) for member in members if member.reward is not None]
        self.reward_errors[version] = standard_error([reward for reward, _ in scored], [prompt for _, prompt in scored])

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


@dataclass(slots=True)
class _Open:
    result: EvaluationResult
    left: int = 0
    problems: dict[str, int] = field(default_factory=dict)


class EvaluationFold:
    """Hears of every answer to an evaluation. `done` are the evaluations that are complete, in this order."""

    def __init__(self, history: History) -> None:
        self.hears: Hears = {c.Scored: self._scored, c.ScoringFailed: self._failed, c.Route: self._begin}
        self.hears[c.Refused] = self._refused
        self.hears[c.CallFailed] = self._call_failed
        self.done: list[EvaluationResult] = []
        self._history = history
        self._open: dict[str, _Open] = {}
        self._failures: dict[str, int] = {}

    def _scored(self, now: float, event: c.Scored) -> None:
        del now
        if event.trajectory in self._open and self._history.trajectories[event.trajectory].reward is not None:
            self._answered(event)

    def _failed(self, now: float, event: c.ScoringFailed) -> None:
        del now
        if event.trajectory in self._open:
            failures = self._failures[event.trajectory] = self._failures.get(event.trajectory, 0) + 1
            if failures >= self._history.spec.scoring_attempts:
                self._answered(event)

    def _refused(self, now: float, event: c.Refused) -> None:
        del now
        if event.trajectory in self._open:
            self._answered(event)

    def _call_failed(self, now: float, event: c.CallFailed) -> None:
        del now
        if event.trajectory in self._open and (event.trajectory, event.answers) in self._history.unanswered:
            self._answered(event)

    def _begin(self, now: float, command: c.Route) -> None:
        del now
        began: dict[str, _Open] = {}
        for ref in command.trajectories:
            if ref.purpose is not c.Purpose.EVAL or ref.trajectory in self._open:
                continue
            if self._history.trajectories[ref.trajectory].reward is None:
                new = _Open(EvaluationResult(0, ref.mode))
                evaluation = self._open[ref.trajectory] = began.setdefault(ref.mode, new)
                evaluation.left += 1
                evaluation.problems[ref.trajectory] = ref.prompt

    def _answered(self, event: c.Scored | c.ScoringFailed | c.Refused | c.CallFailed) -> None:
        history = self._history
        evaluation, known = self._open.pop(event.trajectory), history.trajectories[event.trajectory]
        evaluation.left -= 1
        result = evaluation.result
        if isinstance(event, c.Scored):
            source = history.spec.evaluation.source(evaluation.problems[event.trajectory])
            result.answered(known.tokens, event.reward, event.correct, source)
        else:
            result.failed += 1
        if not evaluation.left:
            result.version, result.at_s = known.version or 0, history.now
            result.step = history.made.get(result.version, history.step)
            self.done.append(result)
