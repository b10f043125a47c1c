"""The replica and trainer roles with clocks, which measure how long their work takes in a real run.

They are the real roles in the same processes; only their factories differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tailrace.contracts import Checkpoint, Command, Engine, Experience, Publish, Step
from tailrace.fleetsim.profile.measured_engine import MeasuredEngine
from tailrace.fleetsim.profile.samples import ClockReading, ReplicaSamples, TrainerSamples, TrainingUpdate, WorkSpan
from tailrace.pipeline.roles.replica import ReplicaRole
from tailrace.pipeline.roles.trainer import TrainerRole
from tailrace.rollout.devices import resolve_device
from tailrace.rollout.options import EngineOptions


class MeasuredReplica(ReplicaRole):
    """A replica whose engine is measured. Arguments are those of `ReplicaRole`."""

    def __init__(self, **arguments: Any) -> None:
        self._samples = ReplicaSamples()
        super().__init__(**arguments)

    def build_engine(self, engine: str, model: Path, options: Mapping[str, Any]) -> Engine:
        """The engine, wrapped to be measured."""
        self._samples.device = resolve_device(EngineOptions.read(options))
        return MeasuredEngine(super().build_engine(engine, model, options), self._samples)

    def samples(self) -> ReplicaSamples:
        """The measurements."""
        return self._samples


class MeasuredTrainer(TrainerRole):
    """A trainer whose commands are measured. Arguments are those of `TrainerRole`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._samples = TrainerSamples()
        self._samples.device = str(getattr(self._backend, "device", "cpu")).partition(":")[0]
        self._timed = _TimedBackend(self._backend, self._samples)
        self._backend = self._timed

    def carry_out(self, command: Command) -> None:
        began = ClockReading.now()
        super().carry_out(command)
        spans = {Step: self._samples.steps, Publish: self._samples.publishes, Checkpoint: self._samples.checkpoints}
        if type(command) in spans:
            spans[type(command)].append(WorkSpan(began, ClockReading.now()))

    def measure_sizes(self, groups: Sequence[int], repeats: int) -> None:
        """Measure updates on the first groups of the last batch. This spoils the model, so call it last.

        Args:
            groups: numbers of groups to update on.
            repeats: updates for each number.
        """
        batch = self._timed.last
        names = list(dict.fromkeys(experience.group for experience in batch))
        self._samples.updates, kept = [], self._samples.updates
        for _ in range(repeats):
            for count in groups:
                chosen = set(names[:count])
                self._timed.step([[experience for experience in batch if experience.group in chosen]])
        self._samples.sizes, self._samples.updates = self._samples.updates, kept

    def samples(self) -> TrainerSamples:
        """The measurements."""
        return self._samples


class _TimedBackend:
    """A backend's worker whose steps are measured."""

    def __init__(self, worker: Any, samples: TrainerSamples) -> None:
        self._worker, self._samples = worker, samples
        self.last: list[Experience] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def step(self, mini_batches: Sequence[Sequence[Experience]]) -> dict[str, float]:
        self.last = [experience for batch in mini_batches for experience in batch]
        lengths = [len(experience.prompt) + len(experience.tokens) for experience in self.last]
        began = ClockReading.now()
        metrics: dict[str, float] = self._worker.step(mini_batches)
        ended = ClockReading.now()
        squares = sum(length * length for length in lengths)
        self._samples.updates.append(
            TrainingUpdate(began, ended, sum(lengths), squares, len(lengths), len(mini_batches))
        )
        return metrics
