"""What a run that has ended came to: its status with every figure as the report has it."""

from __future__ import annotations

from dataclasses import replace

from tailrace.controller.members import REPLICA
from tailrace.faulttol import ROLES
from tailrace.pipeline.run.figures.figures import mean
from tailrace.pipeline.run.figures.status import RunStatus, show_results
from tailrace.report.figures.held_out import results
from tailrace.report.record import Record


def standing(record: Record, written: RunStatus) -> RunStatus:
    """The status of a run that no process drives any more.

    Args:
        record: what its log tells.
        written: what its driver wrote last. It may have died later, so only what a log does not tell is taken from it.
    """
    run, latencies = record.folds.run, record.folds.turns.latencies
    lags = [lag for batch in record.measured for lag in batch.at_consumption]
    rewards = [row["reward_mean"] for row in record.steps if row.get("reward_mean") is not None]
    found = replace(
        written,
        step=run.step,
        steps=written.steps if written.simulated else record.config.pipeline.steps,
        version=run.version,
        reward=rewards[-1] if rewards else None,
        staleness_mean=mean(lags) if lags else None,
        staleness_max=max(lags, default=None),
        bound=run.bound,
        trained_tokens_per_s=record.tokens_per_s if record.batches else None,
        buffered_groups=run.buffered,
        pooled=run.pooled,
        turns=run.counts.turns,
        answer_p50_s=latencies.quantile(0.5) if latencies.count else None,
        answer_p99_s=latencies.quantile(0.99) if latencies.count else None,
        partial_rollout=run.mixes_versions,
        interrupting_pulls=run.interrupting_pulls,
        migrated=run.evictions,
        repacks=run.moves,
        contradictions=run.contradictions,
        replica_restarts=run.restarts(REPLICA),
        restarts={role: count for role in ROLES if (count := run.restarts(role))},
        failed_groups=run.counts.failed,
        delayed_groups=run.counts.delayed,
    )
    show_results(found, results(record))
    found.rest()
    return found
