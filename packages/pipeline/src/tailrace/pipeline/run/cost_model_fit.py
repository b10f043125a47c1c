"""Fits the cost model of decoding to a run's snapshots (StaleFlow, equation 11), and says whether the fit may be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tailrace import contracts as c
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import read_events
from tailrace.repack import FitError, StepTimes, ThroughputModel

LEAST_SAMPLES = 20
ENOUGH_SAMPLES = 60  # to judge the fit on parts of the run that were left out
PARTS = 5
MOST_ERROR = 0.15  # StaleFlow's own fit is off by 10.5 % on average (Appendix B.2)
NEGLIGIBLE = 0.01  # of a step's time: a coefficient that never makes more is at its bound of 0, or as good as there

Sample = tuple[float, int, float]


@dataclass(frozen=True, slots=True)
class Fit:
    """A cost model, how well it explains the run, and why it should not be used.

    Args:
        model: the cost model, fitted to all samples.
        samples: number of snapshots that it was fitted to.
        error: median of |estimated - measured| / measured over the step times that it was fitted to.
        held_out: the same over step times that were left out: each of five stretches of the run in turn, with a model that was
            fitted to the others. None if the rest of the run did not determine a model.
        running: the smallest and the largest batch among the samples.
        doubts: reasons against using it, one sentence each; empty if it may be used.
    """

    model: ThroughputModel
    samples: int
    error: float
    held_out: float | None
    running: tuple[int, int]
    doubts: tuple[str, ...]


def fit_cost_model(directory: RunDirectory) -> Fit:
    """Fit to pairs of snapshots between which a replica's batch was nearly steady.

    Raises:
        RunDirectoryError: the run has too few such snapshots, or they do not determine the model.
    """
    samples = _samples(directory)
    if len(samples) < LEAST_SAMPLES:
        raise RunDirectoryError(
            f"{directory.root}: found {len(samples)} steady snapshots, expected at least {LEAST_SAMPLES}; train for longer"
        )
    try:
        model = ThroughputModel.fit(samples)
    except FitError as error:
        raise RunDirectoryError(f"{directory.root}: {error}") from error
    held_out = _held_out(samples)
    batches = [running for _, running, _ in samples]
    running = min(batches), max(batches)
    return Fit(
        model=model,
        samples=len(samples),
        error=median(_errors(model, samples)),
        held_out=held_out,
        running=running,
        doubts=_doubts(model, samples, held_out),
    )


def _samples(directory: RunDirectory) -> list[Sample]:
    times = StepTimes()
    taken = [times.take(event) for _, event in read_events(directory.events) if isinstance(event, c.Snapshot)]
    return [sample for sample in taken if sample is not None]


def _held_out(samples: Sequence[Sample]) -> float | None:
    """The median error on stretches of the run that a model was not fitted to. Neighbours in time are alike, so whole
    stretches are left out."""
    errors: list[float] = []
    for part in range(PARTS):
        first, last = part * len(samples) // PARTS, (part + 1) * len(samples) // PARTS
        try:
            model = ThroughputModel.fit([*samples[:first], *samples[last:]])
        except FitError:
            return None
        errors += _errors(model, samples[first:last])
    return median(errors)


def _errors(model: ThroughputModel, samples: Sequence[Sample]) -> list[float]:
    return [abs(model.step_latency_s(kv, running) - latency) / latency for kv, running, latency in samples]


def _doubts(model: ThroughputModel, samples: Sequence[Sample], held_out: float | None) -> tuple[str, ...]:
    doubts = []
    if len(samples) < ENOUGH_SAMPLES:
        doubts.append(
            f"{len(samples)} snapshots are too few to judge it, expected {ENOUGH_SAMPLES} or more: train for longer"
        )
    if held_out is None:
        doubts.append("parts of the run do not determine it: run with batches of several sizes")
    elif held_out > MOST_ERROR:
        doubts.append(
            f"step times that were left out are off by {held_out:.0%} in the median, expected at most {MOST_ERROR:.0%}"
        )
    least_s = NEGLIGIBLE * median(latency for _, _, latency in samples)
    batches = [running for _, running, _ in samples]
    if model.k1 * max(kv for kv, _, _ in samples) < least_s:
        doubts.append("k1 is 0 or nearly: as if a full KV cache were as fast as an empty one")
    compute_s = model.k3 * max(batches)
    if compute_s < least_s or compute_s <= model.k2:
        doubts.append(
            f"k3 is {'0' if model.k3 == 0 else 'too small to matter'}: with at most {max(batches)} at once no batch was "
            "bound by computing, so larger ones look free; raise pipeline.prompts_per_replica"
        )
    elif model.k2 <= model.k3 * min(batches):
        doubts.append(
            f"k2 is {'0' if model.k2 == 0 else 'too small to matter'}: with {min(batches)} or more at once no batch was "
            "bound by reading the weights, so smaller ones look faster than they are"
        )
    return tuple(doubts)
