"""The figures of a run in steady state, from what its event log adds up to: the one way to them, simulated or real."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.device_shares import takes_cores
from tailrace.pipeline.run.pools import replica_gpus
from tailrace.report.errors import MeasuredError
from tailrace.report.figures.system import MODEL, Figures, facts, utilisation
from tailrace.report.fold.folds import Folds
from tailrace.report.fold.interruptions import MarkKind
from tailrace.report.record import Record, measured_s

WARM_UP = 10
FEWEST_STEPS = 2
FEWEST_BATCHES = 3


def steady(folds: Folds, warm_up: int, *, name: str, fleet: str, gpus: float, simulated: bool) -> Figures:
    """What a log says of a run between the end of its warm-up and its last batch, or its end before there is a batch.

    Batches that a crash undid count for nothing.

    Args:
        warm_up: batches that are left out.
        name, fleet, gpus: see `Figures`.
    """
    interruptions, loads, batches = folds.interruptions, folds.loads, folds.batches.trained
    begin_s, end_s = measured_s(batches, warm_up, folds.run.now)
    length_s, measured = end_s - begin_s, batches[warm_up:]
    lags = Counter(lag for batch in measured for lag in batch.at_consumption)
    count = len(loads.replicas)
    running, kv = loads.while_busy(begin_s, end_s) or (None, None)
    of, notes = max(1, len(batches)), []
    if folds.sampled:
        notes.append(
            f"Shares of time and bubbles are of {count} of the {loads.of:,} replicas, evenly chosen, "
            "so that watching stays cheap; every other figure is of all."
        )
    return Figures(
        name=name,
        simulated=simulated,
        fleet=fleet,
        gpus=gpus,
        measured_s=(begin_s, end_s),
        batches=len(measured),
        response_tokens_per_s=_over(sum(sum(batch.lengths) for batch in measured), length_s),
        generated_tokens_per_s=_over(loads.generated(begin_s, end_s), length_s),
        step_s=_over(length_s, len(measured)),
        staleness_mean=_over(sum(lag * many for lag, many in lags.items()), lags.total()),
        staleness_max=max(lags, default=0),
        staleness=dict(sorted(lags.items())),
        roles=utilisation(folds.timeline.spans, begin_s, end_s),
        running=running,
        kv_share=kv,
        moves_per_batch=len(interruptions.of(MarkKind.REPACK)) / of,
        interrupting_pulls_per_batch=len(interruptions.of(MarkKind.PULL)) / of,
        migrated_per_batch=sum(each.stopped for each in interruptions.of(MarkKind.EVICTION)) / of,
        notes=tuple(notes),
    )


def measured(record: Record, name: str) -> Figures:
    """The figures of a real run. Its warm-up is the first third of its steps, 10 at most, at least the first.

    Raises:
        MeasuredError: too few steps for a rate.
    """
    steps, config = len(record.batches), record.config
    if steps < FEWEST_STEPS:
        raise MeasuredError(
            f"{record.directory.root}: found {steps} step{'s' if steps != 1 else ''}, expected {FEWEST_STEPS} or more to "
            "measure a rate"
        )
    gpus = replica_gpus(config) + config.trainer.processes * config.executor.trainer_gpus
    gpus = 0.0 if takes_cores(config) else gpus  # cores that stand for devices are none
    warm_up = max(1, min(WARM_UP, steps // 3))
    figures = steady(record.folds, warm_up, name=name, fleet=_fleet(config, gpus), gpus=gpus, simulated=False)
    return replace(figures, facts=facts(config))


def too_few(figures: Figures) -> list[str]:
    """A line where a rate is of so few batches that it may be that of a burst."""
    if figures.batches >= FEWEST_BATCHES:
        return []
    few = f"{figures.batches} batch{'es' if figures.batches != 1 else ''}"
    return [f"Only {few} after the warm-up: raise pipeline.steps for figures to rely on."]


def _fleet(config: RunConfig, gpus: float) -> str:
    model = facts(config)[MODEL]
    where = f"{gpus:g} GPUs" if gpus else "processor cores"
    replicas = f"{config.rollout.replicas} replica{'s' if config.rollout.replicas != 1 else ''}"
    return f"a real run: {model} on {where}, {replicas}"


def _over(value: float, by: float) -> float:
    return value / by if by > 0 else 0.0
