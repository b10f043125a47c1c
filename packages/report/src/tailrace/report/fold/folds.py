"""All that is folded from a log, instant by instant: while a simulation runs, or from the file of any run."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace import contracts as c
from tailrace.pipeline.controller.members import REPLICA
from tailrace.pipeline.run.detection_figures import DetectionFold
from tailrace.pipeline.run.effective_time import EffectiveTime, RoleDevices
from tailrace.pipeline.run.fault_figures import FaultFold
from tailrace.pipeline.run.folding import Audience
from tailrace.pipeline.run.replica_figures import ReplicaFigures
from tailrace.pipeline.run.round_figures import RoundFigures
from tailrace.pipeline.spec import PipelineSpec
from tailrace.report.fold.batches import TrainedBatches
from tailrace.report.fold.evaluations import EvaluationFold
from tailrace.report.fold.history import History
from tailrace.report.fold.interruptions import Interruptions
from tailrace.report.fold.loads import Loads
from tailrace.report.fold.timeline import Timeline
from tailrace.report.fold.versions import Versions
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
