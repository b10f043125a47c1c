"""Problems of a simulated pipeline, with advice. One sentence each, the worst first.

What would change the configuration is simulated before it is said: devices that wait and a KV cache that overflows may well be
what the most throughput costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tailrace.contracts import TailraceError
from tailrace.controller.members import REPLICA, TRAINER
from tailrace.fleetsim.fleet.config import fleet_config
from tailrace.fleetsim.plan.search import layered
from tailrace.fleetsim.plan.space import Split, splits
from tailrace.fleetsim.results.watch import Watched
from tailrace.fleetsim.run import simulate_many
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.figures.batches import Batch, mean
from tailrace.report.figures.steady import too_few
from tailrace.report.fold.timeline import Doing
from tailrace.report.reason_words import ADMITTED, many, percent

IDLE = 0.4  # of a role's time
DRAIN = 0.05
PREEMPTED = 0.1  # for each trajectory
PREFILL = 0.3
PUBLISHING = 0.1
GROWTH = 1.25
SETTLED = 0.2
GAIN = LOSS = 0.02
LESS = 0.75
SPARE = 1.2  # devices for those that would just be busy

Rates = Callable[[Sequence[RunConfig], int], Sequence[float]]
"""Trained tokens per second of each configuration, simulated with a seed; 0 for one that cannot be."""


@dataclass(frozen=True, slots=True)
class FewerDevices:
    """A layer of a configuration, and how many devices it does without."""

    layer: Mapping[str, Any]
    saves: int = 0


@dataclass(frozen=True, slots=True)
class Suspect:
    """What may cost throughput or devices, and the changes that may mend it.

    Args:
        seen: what is seen, as the begin of a sentence.
    """

    seen: str
    changes: Sequence[FewerDevices]


def advice(watched: Watched, rates: Rates | None = None, *, said: Callable[[str], None] = lambda _: None) -> list[str]:
    """The sentences; empty if nothing is off. Changes of the configuration are told only if simulating them gains.

    Ctrl-C ends these simulations, and what they found by then is told.

    Args:
        rates: simulates the changes; by default in parallel processes.
        said: hears how far these are.
    """
    rates = rates or partial(_simulated, said=said)
    return [*findings(watched), *_remedies(watched, list(_suspects(watched)), rates)]


def findings(watched: Watched) -> list[str]:
    """The sentences that need no further simulation."""
    result, figures = watched.result, watched.figures
    measured = watched.folds.batches.trained[watched.fleet.warm_up :]
    found = []
    if result.failure is not None:
        found.append(f"The run gave up: {result.failure}")
    if result.lost_trajectories:
        found.append(
            f"{result.lost_trajectories:,} trajectories were admitted and have no end: a fault in Tailrace, please report it."
        )
    found += too_few(figures)
    missed = watched.folds.faults.figures(watched.fleet.faults).not_struck
    if missed:
        found.append(f"Scripted faults did not strike: {', '.join(missed)}.")
    found += _growing(measured)
    found += _unsettled(measured)
    drained = _drained(watched)
    if drained > DRAIN:
        found.append(
            f"The end of the run weighs {percent(drained)} of the replicas' time, when every prompt is admitted: raise "
            "pipeline.steps, or leave it out (fleet.steady=true)."
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


def _drained(watched: Watched) -> float:
    """Share of the replicas' time in which every prompt of the run is admitted."""
    replicas = watched.figures.role(REPLICA)
    return sum(share for cause, _, share in replicas.bubbles if cause == ADMITTED) if replicas else 0.0


def _suspects(watched: Watched) -> Iterator[Suspect]:
    result, figures, config = watched.result, watched.figures, watched.config
    trainer, replicas, drained = figures.role(TRAINER), figures.role(REPLICA), _drained(watched)
    apart = bool(figures.gpus) and config.fleet.get("placement") != "colocated" and drained <= IDLE
    if trainer is not None and trainer.idle > IDLE and apart:
        fewer = _other_splits(watched, lambda now, split: split.trainer < now.trainer, 1 - trainer.idle)
        yield Suspect(f"The trainer waits for {percent(trainer.idle)} of its time", fewer)
    if replicas is not None and replicas.idle - drained > IDLE and apart:
        waits = replicas.idle - drained
        fewer = _other_splits(watched, lambda now, split: split.rollout < now.rollout, 1 - waits)
        yield Suspect(f"Replicas are idle for {percent(waits)} of their time", fewer)
    trajectories = max(1, result.trajectories)
    if result.preemptions > PREEMPTED * trajectories:
        yield Suspect(
            f"The KV cache overflows: {result.preemptions:,} preemptions for {trajectories:,} trajectories",
            _less(config),
        )
    spans, (begin_s, end_s) = watched.folds.timeline.spans, figures.measured_s
    handing_s = sum(
        max(0.0, min(span.end_s, end_s) - max(span.start_s, begin_s))
        for span in spans
        if span.role == TRAINER and span.doing is Doing.PUBLISHING
    )
    if end_s > begin_s and handing_s / (end_s - begin_s) > PUBLISHING:
        yield Suspect(
            f"The trainer hands weights over for {percent(handing_s / (end_s - begin_s))} of its time",
            [FewerDevices({"fleet": {"weights": "relays"}})],
        )


def _less(config: RunConfig) -> list[FewerDevices]:
    """Less work at once for a replica."""
    prompts = round(LESS * config.pipeline.prompts_per_replica)
    found = [FewerDevices({"pipeline": {"prompts_per_replica": prompts}})] if prompts else []
    rollout = config.fleet.get("rollout")
    most = rollout.get("max_running") if isinstance(rollout, Mapping) else None
    if most is not None:
        found.append(FewerDevices({"fleet": {"rollout": {"max_running": max(1, round(LESS * most))}}}))
    return found


def _other_splits(watched: Watched, wanted: Callable[[Split, Split], bool], busy: float) -> list[FewerDevices]:
    """Fewer devices for the side that waits, with some to spare: the other side gets the rest, or nobody does.

    The second is tried half-way too.

    Args:
        wanted: says of the split now and another whether the other has fewer devices on the side that waits.
        busy: share of its time that this side works.
    """
    table = fleet_config(watched.config.fleet)
    if table.model is None or len(table.rollout) > 1 or table.trainer.gpus is None or table.rollout[0].gpus is None:
        return []
    now = Split(table.trainer.gpus, table.rollout[0].gpus, watched.fleet.pools[0].tp)
    found = [
        split
        for split in splits(table, now.trainer + now.rollout)
        if not split.colocated and split.tensor_parallel == now.tensor_parallel and wanted(now, split)
    ]
    found.sort(key=lambda split: abs(split.trainer - now.trainer))
    if not found:
        return []
    trains = found[0].trainer < now.trainer
    sizes = [split.trainer if trains else split.rollout for split in found]  # ever fewer
    side, had = ("trainer", now.trainer) if trains else ("rollout", now.rollout)
    enough = max((at for at, size in enumerate(sizes) if size >= SPARE * busy * had), default=0)
    both = {"trainer": {"gpus": found[enough].trainer}, "rollout": {"gpus": found[enough].rollout}}
    fewer = [
        FewerDevices({"fleet": {side: {"gpus": sizes[at]}}}, had - sizes[at]) for at in sorted({enough // 2, enough})
    ]
    return [FewerDevices({"fleet": both}), *fewer]


def _remedies(watched: Watched, suspects: Sequence[Suspect], rates: Rates) -> Iterator[str]:
    """A sentence for each suspect that a change of the configuration mends, with the best such change."""
    tried: list[tuple[Suspect, FewerDevices, RunConfig]] = []
    for suspect in suspects:
        for change in suspect.changes:
            try:
                tried.append((suspect, change, layered(watched.config, change.layer)))
            except TailraceError:  # a change that cannot be is none
                continue
    found = rates([config for *_, config in tried], watched.seed) if tried else ()
    now = watched.result.tokens_per_s
    for suspect in suspects:
        own = [(rate, change) for (of, change, _), rate in zip(tried, found, strict=True) if of is suspect]
        faster = [(rate, change) for rate, change in own if rate > (1 + GAIN) * now]
        spared = [(rate, change) for rate, change in own if change.saves and rate >= (1 - LOSS) * now]
        if faster:
            rate, change = max(faster, key=lambda one: one[0])
        elif spared:
            rate, change = max(spared, key=lambda one: one[1].saves)
        else:
            continue
        more = f", {percent(abs(rate / now - 1))} {'more' if rate > now else 'less'}" if now else ""
        fewer = f", with {many(change.saves, 'device')} fewer" if change.saves else ""
        yield f"{suspect.seen}. Simulated too: {_said(change.layer)} trains on {rate:,.0f} tokens/s{more}{fewer}."


def _said(change: Mapping[str, Any], above: str = "") -> str:
    """A layer as on the command line."""
    parts = [
        _said(value, f"{above}{key}.") if isinstance(value, Mapping) else f"{above}{key}={value}"
        for key, value in change.items()
    ]
    return " and ".join(parts)


def _simulated(configs: Sequence[RunConfig], seed: int, *, said: Callable[[str], None]) -> list[float]:
    found = [0.0] * len(configs)
    try:
        said(f"{many(len(configs), 'change')} of the configuration may be better: simulated too")
        for done, (place, result) in enumerate(simulate_many([(config, seed) for config in configs]), start=1):
            found[place] = 0.0 if isinstance(result, TailraceError) or result.failure else result.tokens_per_s
            said(f"{done} of {many(len(configs), 'change')} simulated")
    except KeyboardInterrupt:  # what is found by now is told
        return found
    return found


def _lag(batches: list[Batch]) -> float:
    return mean([lag for batch in batches for lag in batch.at_consumption])
