"""What a run that has ended came to: its status with every figure as the report has it."""

from __future__ import annotations

from dataclasses import replace

from tailrace.pipeline.run.figures.batches import mean
from tailrace.pipeline.run.figures.status import RunStatus, show_results
from tailrace.report.figures.held_out import results
from tailrace.report.record import Record


def standing(record: Record, written: RunStatus) -> RunStatus:
    """The status of a run that no process drives any more.

    Args:
        record: what its log tells.
        written: what its driver wrote last. It may have died later, so only what a log does not tell is taken from it.
    """
    latencies = record.folds.turns.latencies
    lags = [lag for batch in record.measured for lag in batch.at_consumption]
    rewards = [row["reward_mean"] for row in record.steps if row.get("reward_mean") is not None]
    found = replace(written)
    found.take_from(record.folds.run)
    found.steps = written.steps if written.simulated else record.config.pipeline.steps
    found.reward = rewards[-1] if rewards else None
    found.staleness_mean, found.staleness_max = mean(lags) if lags else None, max(lags, default=None)
    found.trained_tokens_per_s = record.tokens_per_s if record.batches else None
    found.answer_p50_s = latencies.quantile(0.5) if latencies.count else None
    found.answer_p99_s = latencies.quantile(0.99) if latencies.count else None
    show_results(found, results(record))
    found.rest()
    return found
