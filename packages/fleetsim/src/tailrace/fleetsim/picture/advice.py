"""What is off in a simulated pipeline, and what to try. Each in one sentence, the worst first."""

from __future__ import annotations

from tailrace.fleetsim.picture.figures import Figures
from tailrace.fleetsim.picture.watch import Watched
from tailrace.fleetsim.recorder import Row
from tailrace.pipeline.controller.members import REPLICA, TRAINER
from tailrace.pipeline.run.reporting.causes import ADMITTED
from tailrace.pipeline.run.reporting.headline import percent
from tailrace.pipeline.run.timeline import Doing

IDLE = 0.4  # of a role's time
DRAIN = 0.05
PREEMPTED = 0.1  # for each trajectory
PREFILL = 0.3
PUBLISHING = 0.1
GROWTH = 1.25
FEWEST_BATCHES = 3
SETTLED = 0.2


def advice(watched: Watched, figures: Figures) -> list[str]:
    """The sentences; empty if nothing is off."""
    result = watched.result
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
    found += _growing(watched.measured)
    found += _unsettled(watched.measured)
    found += _idle(watched, figures)
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


def _growing(rows: list[Row]) -> list[str]:
    """Staleness that grows is of a pipeline whose replicas run away from its trainer."""
    half = len(rows) // 2
    if half < 2:
        return []
    before, after = _mean(rows[:half]), _mean(rows[-half:])
    if after <= GROWTH * before + 0.5:
        return []
    grows = f"Staleness grows: {before:.2f} on average in the first half, {after:.2f} in the second."
    return [f"{grows} Bound it (pipeline.admission), limit pipeline.buffer_prompts, or give the trainer more devices."]


def _unsettled(rows: list[Row]) -> list[str]:
    third = len(rows) // 3
    if third < 2:
        return []
    first = (rows[third].at_s - rows[0].at_s) / third
    last = (rows[-1].at_s - rows[-1 - third].at_s) / third
    if abs(last - first) <= SETTLED * max(first, last):
        return []
    change = f"a step takes {first:,.1f} s at the begin of what is measured and {last:,.1f} s at its end"
    return [f"Not in steady state: {change}. Raise pipeline.steps, and fleet.warm_up with it."]


def _idle(watched: Watched, figures: Figures) -> list[str]:
    found = []
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
    spans, (begin_s, end_s) = watched.folds.timeline.spans, watched.measured_s
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


def _mean(rows: list[Row]) -> float:
    count = sum(sum(row.lags.values()) for row in rows)
    return sum(lag * many for row in rows for lag, many in row.lags.items()) / count if count else 0.0
