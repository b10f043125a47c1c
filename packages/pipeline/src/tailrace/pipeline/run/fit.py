"""Fits the cost model of decoding to a run's snapshots (StaleFlow, equation 11)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from tailrace import contracts as c
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import read_events
from tailrace.repack import FitError, ThroughputModel

LEAST_SAMPLES = 20
STEADY = 0.3  # how far the batch may have changed between two snapshots, as a share of it


@dataclass(frozen=True, slots=True)
class Fit:
    """A cost model and how well it explains the run.

    Args:
        model: the cost model.
        samples: number of snapshots that it was fitted to.
        error: median of |estimated - measured| / measured over the replicas' throughput.
    """

    model: ThroughputModel
    samples: int
    error: float


def fit_cost_model(directory: RunDirectory) -> Fit:
    """Fit to pairs of snapshots between which a replica's batch was nearly steady.

    Raises:
        RunDirectoryError: the run has too few such snapshots, or they do not determine the model.
    """
    samples: list[tuple[float, int, float]] = []
    before: dict[str, c.Snapshot] = {}
    for _, event in read_events(directory.events):
        if not isinstance(event, c.Snapshot):
            continue
        last = before.get(event.replica)
        before[event.replica] = event
        if last is None or not event.running or not last.running or event.tokens_per_s <= 0:
            continue
        running = (last.running + event.running) / 2
        if abs(last.running - event.running) <= STEADY * running:
            kv = (last.kv + event.kv) / 2 * event.kv_capacity_tokens
            samples.append((kv, round(running), running / event.tokens_per_s))
    if len(samples) < LEAST_SAMPLES:
        raise RunDirectoryError(
            f"{directory.root}: found {len(samples)} steady snapshots, expected at least {LEAST_SAMPLES}; train for longer"
        )
    try:
        model = ThroughputModel.fit(samples)
    except FitError as error:
        raise RunDirectoryError(f"{directory.root}: {error}") from error
    errors = [abs(model.step_latency_s(kv, running) - latency) / latency for kv, running, latency in samples]
    return Fit(model, len(samples), median(errors))
