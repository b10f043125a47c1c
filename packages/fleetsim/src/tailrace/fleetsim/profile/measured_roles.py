"""The replica and trainer roles with clocks, which measure how long their work takes in a real run.

They are the real roles in the same processes; only their factories differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.contracts import (
    AdapterWeights,
    AdaptingEngine,
    Checkpoint,
    Command,
    Delta,
    DigestingEngine,
    Engine,
    EngineStats,
    Experience,
    Publish,
    Request,
    SleepingEngine,
    Step,
    WeightBox,
    WeightDigest,
)
from tailrace.fleetsim.profile.samples import (
    ClockReading,
    EngineRound,
    Look,
    ReplicaSamples,
    TrainerSamples,
    TrainingUpdate,
    WorkSpan,
)
from tailrace.pipeline.roles.replica import ReplicaRole, ReplicaSettings
from tailrace.pipeline.roles.trainer import TrainerRole, TrainerSettings
from tailrace.rollout.options import EngineOptions, resolve_device
from tailrace.runtime.executor.deployment import REPLICA, TRAINER
from tailrace.runtime.executor.doors import RoleDoor
from tailrace.runtime.executor.seam import MemberStart

LOOKS = 200


class SamplesReplica(Protocol):
    """What is asked of a `MeasuredReplica`."""

    def samples(self) -> ReplicaSamples:
        """The measurements."""
        ...


class SamplesTrainer(Protocol):
    """What is asked of a `MeasuredTrainer`."""

    def measure_sizes(self, groups: Sequence[int], repeats: int, /) -> None:
        """Measure updates on the first groups of the last batch."""
        ...

    def samples(self) -> TrainerSamples:
        """The measurements."""
        ...


REPLICA_SAMPLES = RoleDoor[SamplesReplica](REPLICA, SamplesReplica)
TRAINER_SAMPLES = RoleDoor[SamplesTrainer](TRAINER, SamplesTrainer)


class MeasuredReplica(ReplicaRole):
    """A replica whose engine is measured. Arguments are those of `ReplicaRole`."""

    def __init__(self, settings: ReplicaSettings, start: MemberStart) -> None:
        self._samples = ReplicaSamples()
        super().__init__(settings, start)

    def build_engine(self, engine: str, model: Path, options: Mapping[str, Any]) -> Engine:
        """The engine, wrapped to be measured."""
        self._samples.device = resolve_device(EngineOptions.read(options))
        return MeasuredEngine(super().build_engine(engine, model, options), self._samples)

    def samples(self) -> ReplicaSamples:
        """The measurements."""
        return self._samples


def _kept(experience: Experience) -> Experience:
    """An experience that outlives its batch, which drops the tokens that it fetched."""
    return Experience(
        experience.trajectory,
        experience.group,
        experience.prompt,
        experience.segments,
        experience.finish,
        experience.reward,
        experience.completed_version,
    )


class MeasuredTrainer(TrainerRole):
    """A trainer whose commands are measured. Arguments are those of `TrainerRole`."""

    def __init__(self, settings: TrainerSettings, start: MemberStart) -> None:
        super().__init__(settings, start)
        self._samples = TrainerSamples()
        self._samples.device = str(self._backend.device).partition(":")[0]
        self._last: list[Experience] = []

    def carry_out(self, command: Command) -> None:
        began = ClockReading.now()
        super().carry_out(command)
        spans = {Step: self._samples.steps, Publish: self._samples.publishes, Checkpoint: self._samples.checkpoints}
        if type(command) in spans:
            spans[type(command)].append(WorkSpan(began, ClockReading.now()))

    def update(self, mini_batches: Sequence[Sequence[Experience]]) -> dict[str, float]:
        """Make an optimizer step on each mini-batch, and note how long they took."""
        self._last = [_kept(experience) for batch in mini_batches for experience in batch]
        lengths = [len(experience.prompt) + len(experience.tokens) for experience in self._last]
        began = ClockReading.now()
        metrics = super().update(mini_batches)
        ended = ClockReading.now()
        squares = sum(length * length for length in lengths)
        self._samples.updates.append(
            TrainingUpdate(began, ended, sum(lengths), squares, len(lengths), len(mini_batches))
        )
        return metrics

    def measure_sizes(self, groups: Sequence[int], repeats: int) -> None:
        """Measure updates on the first groups of the last batch. This spoils the model, so call it last.

        Args:
            groups: numbers of groups to update on.
            repeats: updates for each number.
        """
        batch = self._last
        names = list(dict.fromkeys(experience.group for experience in batch))
        self._samples.updates, kept = [], self._samples.updates
        for _ in range(repeats):
            for count in groups:
                chosen = set(names[:count])
                self.update([[experience for experience in batch if experience.group in chosen]])
        self._samples.sizes, self._samples.updates = self._samples.updates, kept

    def samples(self) -> TrainerSamples:
        """The measurements."""
        return self._samples


class MeasuredEngine:
    """An engine (`tailrace.contracts.Engine`) around another one.

    Args:
        engine: the wrapped engine.
        samples: takes the measurements.
    """

    def __init__(self, engine: Engine, samples: ReplicaSamples) -> None:
        self._engine, self.samples = engine, samples
        self._tokens: dict[str, int] = {}  # tokens of each trajectory in flight, prompt included
        self._fresh = self._fresh_tokens = 0
        self._since: ClockReading | None = None

    def submit(self, requests: Sequence[Request]) -> None:
        """Pass the call on, and count the tokens to prefill."""
        if self._since is None:
            self._since = ClockReading.now()
        self._engine.submit(requests)
        for request in requests:
            tokens = len(request.prompt) + len(request.kept)
            self._tokens[request.id] = tokens
            self._fresh += 1
            self._fresh_tokens += tokens

    def step(self) -> Sequence[Delta]:
        """Pass the call on, and note the round."""
        began = ClockReading.now()
        deltas = self._engine.step()
        ended = ClockReading.now()
        tokens = self._tokens
        in_flight, running, kv_tokens = len(tokens), 0, 0
        finished = []
        for delta in deltas:
            if delta.id not in tokens:
                continue
            tokens[delta.id] += len(delta.tokens)
            if delta.tokens:
                running += 1
                kv_tokens += tokens[delta.id]
            if delta.finish is not None:
                del tokens[delta.id]
                finished.append(delta.id)
        self.samples.finished += ((id_, ended.wall_s, not tokens) for id_ in finished)
        self.samples.rounds.append(
            EngineRound(
                self._since or began,
                began,
                ended,
                running,
                kv_tokens,
                self._fresh,
                self._fresh_tokens,
                max(0, in_flight - running),
            )
        )
        self._fresh = self._fresh_tokens = 0
        self._since = ended if tokens else None
        return deltas

    def abort(self, ids: Sequence[str]) -> Sequence[Delta]:
        """Pass on."""
        deltas = self._engine.abort(ids)
        for id_ in ids:
            self._tokens.pop(id_, None)
        if not self._tokens:
            self._since = None
        return deltas

    def digests(self, boxes: Sequence[WeightBox]) -> Sequence[WeightDigest]:
        """Pass on; asked of an engine whose abilities are `digests`."""
        assert isinstance(self._engine, DigestingEngine)
        return self._engine.digests(boxes)

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Pass on."""
        self._engine.load_weights(weights)
        self._since = None

    def load_adapter(self, adapter: AdapterWeights) -> None:
        """Pass on."""
        assert isinstance(self._engine, AdaptingEngine)
        self._engine.load_adapter(adapter)
        self._since = None

    def sleep(self, level: int) -> None:
        """Pass on."""
        assert isinstance(self._engine, SleepingEngine)
        self._engine.sleep(level)
        self._since = None

    def wake(self) -> None:
        """Pass on."""
        assert isinstance(self._engine, SleepingEngine)
        self._engine.wake()

    def memory_bytes(self) -> int:
        """Pass on."""
        assert isinstance(self._engine, SleepingEngine)
        return self._engine.memory_bytes()

    def stats(self) -> EngineStats:
        """Pass on."""
        stats = self._engine.stats()
        self.samples.kv_capacity_tokens = stats.kv_capacity_tokens
        if self._tokens and not stats.waiting and len(self.samples.looks) < LOOKS:
            self.samples.looks.append(Look(stats.kv * stats.kv_capacity_tokens, tuple(self._tokens.values())))
        return stats

    def close(self) -> None:
        """Pass on."""
        self._engine.close()


if TYPE_CHECKING:
    _replica: type[SamplesReplica] = MeasuredReplica  # mypy checks them here
    _trainer: type[SamplesTrainer] = MeasuredTrainer
