"""Problems of a simulated pipeline, with advice. One sentence each, the worst first."""

from __future__ import annotations

from tailrace.fleetsim.watch import Watched
from tailrace.pipeline.controller.members import REPLICA, TRAINER
from tailrace.pipeline.run.figures import Batch, mean
from tailrace.report.fold.causes import ADMITTED
from tailrace.report.fold.timeline import Doing
from tailrace.report.words import percent

IDLE = 0.4  # of a role's time
DRAIN = 0.05
PREEMPTED = 0.1  # for each trajectory
PREFILL = 0.3
PUBLISHING = 0.1
GROWTH = 1.25
FEWEST_BATCHES = 3
SETTLED = 0.2


def advice(watched: Watched) -> list[str]:
    """The sentences; empty if nothing is off."""
    result, figures = watched.result, watched.figures
    measured = watched.folds.batches.trained[watched.fleet.warm_up :]
    found = []
    if result.failure is not None:
        found.append(f"The run gave up: {result.failure}")
    if result.lost_trajectories:
        found.append(
            f"{result.lost_trajectories:,} trajectories were admitted and have no end: a fault in Tailrace, please report it."
        )
    if figures.batches < FEWEST_BATCHES:
        few = f"{figures.batches} batch{'es' if figures.batches != 1 else ''}"
        found.append(f"Only {few} after the warm-up: raise pipeline.steps for figures to rely on.")
    missed = watched.folds.faults.figures(watched.fleet.faults).not_struck
    if missed:
        found.append(f"Scripted faults did not strike: {', '.join(missed)}.")
    found += _growing(measured)
    found += _unsettled(measured)
    found += _idle(watched)
    trajectories = max(1, result.trajectories)
    if result.preemptions > PREEMPTED * trajectories:
        found.append(
            f"The KV cache overflows: {result.preemptions:,} preemptions for {trajectories:,} trajectories. Lower "
            "pipeline.prompts_per_replica or fleet.rollout.max_running, or give a replica more devices."
        )
    if result.prefill_share > PREFILL:
        found.append(
            f"Replicas spend {percent(result.prefill_share)} of their busy time on prefill: interruptions and turns lose "
            "the KV cache too often."
        )
    return found


def _growing(batches: list[Batch]) -> list[str]:
    """Staleness that grows is of a pipeline whose replicas run away from its trainer."""
    half = len(batches) // 2
    if half < 2:
        return []
    before, after = _lag(batches[:half]), _lag(batches[-half:])
    if after <= GROWTH * before + 0.5:
        return []
    grows = f"Staleness grows: {before:.2f} on average in the first half, {after:.2f} in the second."
    return [f"{grows} Bound it (pipeline.admission), limit pipeline.buffer_prompts, or give the trainer more devices."]


def _unsettled(batches: list[Batch]) -> list[str]:
    third = len(batches) // 3
    if third < 2:
        return []
    first = (batches[third].ended_s - batches[0].ended_s) / third
    last = (batches[-1].ended_s - batches[-1 - third].ended_s) / third
    if abs(last - first) <= SETTLED * max(first, last):
        return []
    change = f"a step takes {first:,.1f} s at the begin of what is measured and {last:,.1f} s at its end"
    return [f"Not in steady state: {change}. Raise pipeline.steps, and fleet.warm_up with it."]


def _idle(watched: Watched) -> list[str]:
    found, figures = [], watched.figures
    trainer, replicas = figures.role(TRAINER), figures.role(REPLICA)
    drained = sum(share for cause, _, share in replicas.bubbles if cause == ADMITTED) if replicas else 0.0
    if drained > DRAIN:
        found.append(
            f"The end of the run weighs {percent(drained)} of the replicas' time, when every prompt is admitted: raise "
            "pipeline.steps, or leave it out (fleet.steady=true)."
        )
    splits = bool(figures.gpus) and watched.config.fleet.get("placement") != "colocated" and drained <= IDLE
    if trainer is not None and trainer.idle > IDLE and splits:
        found.append(
            f"The trainer waits for {percent(trainer.idle)} of its time: give it fewer devices, or the rollout more."
        )
    if replicas is not None and replicas.idle - drained > IDLE and splits:
        found.append(
            f"Replicas are idle for {percent(replicas.idle - drained)} of their time: give the rollout fewer devices, or the "
            "trainer more, or let them run further ahead."
        )
    spans, (begin_s, end_s) = watched.folds.timeline.spans, figures.measured_s
    handing_s = sum(
        max(0.0, min(span.end_s, end_s) - max(span.start_s, begin_s))
        for span in spans
        if span.role == TRAINER and span.doing is Doing.PUBLISHING
    )
    if end_s > begin_s and handing_s / (end_s - begin_s) > PUBLISHING:
        found.append(
            f"The trainer hands weights over for {percent(handing_s / (end_s - begin_s))} of its time: relays "
            'instead of a global synchronisation (fleet.weights="relays") take it off its path.'
        )
    return found


def _lag(batches: list[Batch]) -> float:
    return mean([lag for batch in batches for lag in batch.at_consumption])
