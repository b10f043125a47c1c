"""The figures and the scene of a real run, read from its directory, beside which a simulation can stand."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from tailrace.contracts import Snapshot
from tailrace.fleetsim.errors import MeasuredError
from tailrace.fleetsim.picture.figures import Figures
from tailrace.fleetsim.picture.scene import Scene, last_steps
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.controller.members import REPLICA, TRAINER
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import read_events
from tailrace.pipeline.run.reporting.folds import evenly
from tailrace.pipeline.run.reporting.interruptions import Kind
from tailrace.pipeline.run.reporting.record import Record, read_record
from tailrace.pipeline.run.reporting.timeline_chart import utilisation

WARM_UP = 10
FEWEST_STEPS = 2


@dataclass(frozen=True, slots=True)
class Measured:
    """A real run."""

    figures: Figures
    scene: Scene


def measured(directory: RunDirectory, *, name: str, rows: int, steps: int) -> Measured:
    """What a run's metrics and its event log say, from the end of its start-up to its last step.

    Start-up are the first third of its steps, 10 at most, at least the first: as in a simulation.

    Args:
        rows, steps: of the scene.

    Raises:
        RunDirectoryError, ConfigError: it is no run, or a file of it is damaged.
        MeasuredError: too few steps for a rate.
    """
    record = read_record(directory)
    found = [_row(row, directory) for row in record.steps]
    if len(found) < FEWEST_STEPS:
        raise MeasuredError(
            f"{directory.root}: found {len(found)} step{'s' if len(found) != 1 else ''} in {directory.metrics.name}, "
            f"expected {FEWEST_STEPS} or more to measure a rate"
        )
    warm_up = max(1, min(WARM_UP, len(found) // 3))
    begin_s, end_s = float(found[warm_up - 1]["t"]), float(found[-1]["t"])
    loads = _loads(directory)
    figures = _figures(name, found, warm_up, record, loads)
    spans, marks = record.timeline.spans, record.timeline.marks
    members = sorted({span.member for span in spans if span.role == REPLICA}, key=lambda member: (len(member), member))
    names = evenly(members, rows)
    kept = {(TRAINER, "0"), *((REPLICA, member) for member in names)}
    stepped = [(float(row["t"]), int(row["version"])) for row in found]
    scene = Scene(
        name=name,
        caption=figures.fleet,
        spans=[span for span in spans if (span.role, span.member) in kept],
        marks=[mark for mark in marks if (mark.role, mark.member) in kept],
        loads={member: [(at_s, running) for at_s, running, _ in loads.get(member, [])] for member in names},
        shown_s=last_steps([at_s for at_s, _ in stepped], begin_s, end_s, steps),
        steps=stepped,
        drawn=len(names),
        of=len(members),
    )
    return Measured(figures, scene)


def _figures(
    name: str,
    found: list[dict[str, Any]],
    warm_up: int,
    record: Record,
    loads: dict[str, list[tuple[float, float, float]]],
) -> Figures:
    config, observed = record.config, record.observed
    begin_s, end_s = float(found[warm_up - 1]["t"]), float(found[-1]["t"])
    length_s, steps = max(end_s - begin_s, 1e-9), found[warm_up:]
    trajectories = sum(row["trajectories"] for row in steps) or 1
    staleness: Counter[int] = Counter()
    standing = {row["version"] for row in steps}
    for batch in record.batches:
        staleness.update(batch.at_consumption if batch.version in standing else ())
    busy = [load for member in loads.values() for load in member if load[1] > 0 and begin_s < load[0] <= end_s]
    migrated = sum(each.trajectories for each in observed.interrupted(Kind.EVICTION))
    gpus = config.rollout.replicas * config.executor.replica_gpus
    gpus += config.trainer.processes * config.executor.trainer_gpus
    return Figures(
        name=name,
        simulated=False,
        fleet=_fleet(config, gpus),
        batches=len(steps),
        tokens_per_s=None,
        response_tokens_per_s=sum(row["tokens"] for row in steps) / length_s,
        generated_tokens_per_s=record.loads.generated(begin_s, end_s) / length_s,
        gpus=gpus,
        step_s=length_s / len(steps),
        staleness_mean=sum(row["staleness_mean"] * row["trajectories"] for row in steps) / trajectories,
        staleness_max=int(max(row["staleness_max"] for row in steps)),
        staleness=dict(sorted(staleness.items())),
        roles=utilisation(record.timeline.spans, begin_s, end_s),
        running=sum(load[1] for load in busy) / len(busy) if busy else None,
        kv_share=sum(load[2] for load in busy) / len(busy) if busy else None,
        prefill_share=None,
        moves_per_batch=len(observed.interrupted(Kind.REPACK)) / len(found),
        interrupting_pulls_per_batch=len(observed.interrupted(Kind.PULL)) / len(found),
        migrated_per_batch=migrated / len(found),
        preemptions=None,
        latency_mean_s=None,
        latency_max_s=None,
        price_per_hour=None,
    )


def _row(row: dict[str, Any], directory: RunDirectory) -> dict[str, Any]:
    """The figures of a step. Its response tokens are the controller's count, or the trainer's own where that is missing."""
    tokens = row.get("response_tokens", row.get("tokens"))
    missing = [key for key in ("t", "version", "trajectories", "staleness_mean", "staleness_max") if key not in row]
    if tokens is None or missing:
        raise MeasuredError(
            f"{directory.metrics}: step {row.get('step')} has no {(*missing, 'tokens')[0]!r}, expected a run's metrics"
        )
    return {**row, "tokens": tokens}


def _fleet(config: RunConfig, gpus: float) -> str:
    model = "a small Qwen3" if config.model.path is None else config.model.path.name
    where = f"{gpus:g} GPUs" if gpus else "processor cores"
    replicas = f"{config.rollout.replicas} replica{'s' if config.rollout.replicas != 1 else ''}"
    return f"a real run: {model} on {where}, {replicas}"


def _loads(directory: RunDirectory) -> dict[str, list[tuple[float, float, float]]]:
    """Running trajectories and KV cache in use of every replica, as its snapshots say: until when, and what."""
    loads: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    if directory.events.exists():
        for now, event in read_events(directory.events):
            if isinstance(event, Snapshot):
                loads[event.replica].append((now, float(event.running), event.kv))
    return loads
