"""What a run that has ended came to: its status with every figure as the report has it."""

from __future__ import annotations

from dataclasses import replace

from tailrace.controller.members import REPLICA
from tailrace.pipeline.run.figures.figures import mean
from tailrace.pipeline.run.figures.status import RunStatus, show_results
from tailrace.report.figures.held_out import results
from tailrace.report.figures.prompts import PromptFates
from tailrace.report.fold.interruptions import MarkKind
from tailrace.report.record import Record


def standing(record: Record, written: RunStatus) -> RunStatus:
    """The status of a run that no process drives any more.

    Args:
        record: what its log tells.
        written: what its driver wrote last. It may have died later, so only what a log does not tell is taken from it.
    """
    history, interruptions = record.folds.history, record.folds.interruptions
    lags = [lag for batch in record.measured for lag in batch.at_consumption]
    rewards = [row["reward_mean"] for row in record.steps if row.get("reward_mean") is not None]
    found = replace(
        written,
        step=history.step,
        steps=written.steps if written.simulated else record.config.pipeline.steps,
        version=history.version,
        reward=rewards[-1] if rewards else None,
        staleness_mean=mean(lags) if lags else None,
        staleness_max=max(lags, default=None),
        bound=history.bound,
        trained_tokens_per_s=record.tokens_per_s if record.batches else None,
        buffered_groups=history.buffered,
        pooled=len(history.pending),
        turns=history.turns,
        answer_p50_s=history.latencies.quantile(0.5) if history.latencies.count else None,
        answer_p99_s=history.latencies.quantile(0.99) if history.latencies.count else None,
        partial_rollout=history.mixes_versions,
        interrupting_pulls=len(interruptions.of(MarkKind.PULL)),
        migrated=sum(each.stopped for each in interruptions.of(MarkKind.EVICTION)),
        repacks=len(interruptions.of(MarkKind.REPACK)),
        contradictions=record.contradictions,
        replica_restarts=history.restarts[REPLICA],
        restarts={role: count for role, count in history.restarts.items() if count},
        failed_groups=sum(PromptFates.of(history).failed.values()),
        delayed_groups=history.delayed,
    )
    show_results(found, results(record))
    found.rest()
    return found
