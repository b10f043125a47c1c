"""The cost model fitted while a run goes on, to what its replicas report. A pure function of their snapshots, in order.

Snapshot ──► StepTimes: pairs between which a batch was nearly steady ──► OnlineFit: thinned ──► ThroughputModel, error

A step of a busy machine takes anything from half to several times as long as another of the same batch. So the fit is of
relative errors, in which small batches count as much as large ones, and what is far off weighs less: it follows the median.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from tailrace.contracts import Snapshot
from tailrace.repack.throughput import Sample, ThroughputModel, nonnegative_least_squares

STEADY = 0.3  # how far the batch may have changed between two snapshots, as a share of it
LEAST_SAMPLES = 20
# that are fitted to, spread evenly over the run: a fit with its errors takes some hundredths of a second
MOST_SAMPLES = 96
MOST_ERROR = 0.3  # median; a fit that is further off is shown and not planned with
_ROUNDS = 5  # of weighing anew
_SMALL = 0.1  # share by which a step may be off before it weighs less
_SPLITS = 8  # places of the turning point that are tried in each round, beside that of the round before
_PARTS = 5  # stretches of the run that are left out in turn
_ALIKE = 8  # steps of like batches whose median is what a model is held to


@dataclass(slots=True)
class StepTimes:
    """Turns the snapshots of replicas into samples: tokens in the KV cache, running trajectories, seconds of a step."""

    before: dict[str, Snapshot] = field(default_factory=dict)

    def take(self, snapshot: Snapshot) -> Sample | None:
        """The sample that a snapshot and the one before it of its replica are; None if the batch was empty or changed."""
        last = self.before.get(snapshot.replica)
        self.before[snapshot.replica] = snapshot
        if last is None or not snapshot.running or not last.running or snapshot.tokens_per_s <= 0:
            return None
        running = (last.running + snapshot.running) / 2
        if abs(last.running - snapshot.running) > STEADY * running:
            return None
        kv = (last.kv + snapshot.kv) / 2 * snapshot.kv_capacity_tokens
        return kv, round(running), running / snapshot.tokens_per_s

    def lost(self, replica: str) -> None:
        """Forget what a replica said that is gone."""
        self.before.pop(replica, None)


def fit_relative(samples: Sequence[Sample]) -> ThroughputModel | None:
    """The model with the least relative errors, large ones by their size and not its square; None if there is none.

    Coefficients are at least 0. Errors are relative to the estimate: relative to what was measured, short steps drew it down.
    """
    counts = sorted({running for _, running, _ in samples})
    tried = counts if len(counts) <= _SPLITS else [counts[at * len(counts) // _SPLITS] for at in range(1, _SPLITS)]
    splits = dict.fromkeys([counts[-1], counts[0] - 1, *tried])  # none turns compute-bound, all are, those above are
    typical_s = median([took for _, _, took in samples])
    estimates = [typical_s] * len(samples)
    model: ThroughputModel | None = None
    for _ in range(_ROUNDS):
        weights = [
            1 / (estimate * math.sqrt(max(abs(took / estimate - 1), _SMALL)))
            for (_, _, took), estimate in zip(samples, estimates, strict=True)
        ]
        turn = None if model is None else model.roofline_batch
        found = [_weighted(samples, weights, split) for split in (splits if turn is None else (*splits, turn))]
        model = min([each for each in found if each is not None], default=(0.0, None), key=lambda each: each[0])[1]
        if model is None:
            return None
        estimates = [max(model.step_latency_s(kv, running), 1e-3 * typical_s) for kv, running, _ in samples]
    return model


def _weighted(samples: Sequence[Sample], weights: Sequence[float], split: int) -> tuple[float, ThroughputModel] | None:
    """The weighted least-squares model if more than `split` trajectories are compute-bound, and its error."""
    rows = [
        (kv * weight, weight * (running <= split), running * weight * (running > split), weight)
        for (kv, running, _), weight in zip(samples, weights, strict=True)
    ]
    found = nonnegative_least_squares(
        rows, [took * weight for (_, _, took), weight in zip(samples, weights, strict=True)]
    )
    if found is None:
        return None
    model = ThroughputModel(*found)
    return sum(
        [
            ((model.step_latency_s(kv, running) - took) * weight) ** 2
            for (kv, running, took), weight in zip(samples, weights, strict=True)
        ]
    ), model


def held_out_errors(samples: Sequence[Sample]) -> tuple[float, float] | None:
    """How far models are off on stretches of the run that they were not fitted to; None if the others determine none.

    Neighbours in time are alike, so whole stretches are left out, each of five in turn.

    Returns:
        The median relative error of the median of eight steps of like batches, and that of single steps.
    """
    alike: list[float] = []
    single: list[float] = []
    for part in range(_PARTS):
        first, last = part * len(samples) // _PARTS, (part + 1) * len(samples) // _PARTS
        model = fit_relative([*samples[:first], *samples[last:]])
        if model is None:
            return None
        ratios = [
            model.step_latency_s(kv, running) / took
            for running, kv, took in sorted((running, kv, took) for kv, running, took in samples[first:last])
        ]
        single += [abs(ratio - 1) for ratio in ratios]
        groups = max(1, len(ratios) // _ALIKE)
        bounds = [at * len(ratios) // groups for at in range(groups + 1)]
        alike += [abs(median(ratios[low:high]) - 1) for low, high in pairwise(bounds)]
    return median(alike), median(single)


@dataclass(frozen=True, slots=True)
class FittedCosts:
    """A cost model and how well it explains the run so far.

    Args:
        model: the cost model.
        samples: steps that it was fitted to.
        error: median relative error over medians of eight steps of like batches, on stretches of the run that were left out of
            the fit: policies plan with the typical step.
        scatter: the same over single steps. It has the machine's noise, too, which no model can explain.
    """

    model: ThroughputModel
    samples: int
    error: float
    scatter: float

    @property
    def usable(self) -> bool:
        """Whether policies plan with it: a step takes time, and the error is at most `MOST_ERROR`."""
        return self.error <= MOST_ERROR and self.model.k2 + self.model.k4 > 0


@dataclass(slots=True)
class OnlineFit:
    """Samples of a run, as many as `MOST_SAMPLES` at most, and the last fit to them.

    Each time that their number has doubled, from `LEAST_SAMPLES` on, a fit is due. When there are too many, every other one
    goes, and only every other one that comes is taken: what is kept is spread over the whole run.

    Args:
        times: the last snapshots.
        samples: the samples that are kept.
        seen: samples so far.
        every: how many samples come for one that is kept.
        due_at: samples so far at which the next fit is due.
        last: the last fit that policies plan with, or while there is none the last one; None before the first, or while the
            samples determine none.
    """

    times: StepTimes = field(default_factory=StepTimes)
    samples: list[Sample] = field(default_factory=list)
    seen: int = 0
    every: int = 1
    due_at: int = LEAST_SAMPLES
    last: FittedCosts | None = None

    def take(self, snapshot: Snapshot) -> None:
        """Take a snapshot in."""
        sample = self.times.take(snapshot)
        if sample is None:
            return
        if self.seen % self.every == 0:
            self.samples.append(sample)
            if len(self.samples) > MOST_SAMPLES:
                self.samples, self.every = self.samples[::2], 2 * self.every
        self.seen += 1

    def refit(self) -> FittedCosts | None:
        """The fit, if one is due and the samples determine a model; otherwise None."""
        if self.seen < self.due_at:
            return None
        while self.due_at <= self.seen:
            self.due_at *= 2
        model, errors = fit_relative(self.samples), held_out_errors(self.samples)
        if model is None or errors is None:
            return None
        found = FittedCosts(model, len(self.samples), *errors)
        if found.usable or self.last is None or not self.last.usable:
            self.last = found
        return found
