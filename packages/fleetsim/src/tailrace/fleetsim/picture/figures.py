"""The figures of a system that matter, of a simulated one or of a real run, under the same definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.fleetsim.picture.watch import Watched
from tailrace.pipeline.controller.members import REPLICA, TRAINER
from tailrace.pipeline.run.reporting.timeline_chart import Utilisation

PRICE_UNIT = "H20-hours"
"""What the prices of ``hardware/devices.toml`` are in: the papers give ratios, no currency."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A system in steady state: what comes before, start-up and warm-up, is left out. None is not known.

    Args:
        name: of the system.
        simulated: or measured in a real run.
        fleet: its devices in words.
        batches: that were measured.
        tokens_per_s: trained on, prompts included.
        response_tokens_per_s: trained on, prompts left out.
        generated_tokens_per_s: response tokens that the replicas generated.
        gpus: devices; 0 is none, such as on processor cores alone.
        step_s: mean time between two batches.
        staleness_mean, staleness_max: over trajectories trained on.
        staleness: these trajectories by staleness; empty if only mean and maximum are known.
        roles: how the members of each role spent the time.
        running: trajectories in a replica's batch, averaged over the time in which there is one.
        kv_share: of the KV cache in use, averaged over the same.
        prefill_share: of a busy replica's time.
        moves_per_batch: replicas emptied by relocation, over the whole run; and over the same, pulls that interrupted
            work, and trajectories that were taken from a replica for another.
        preemptions: trajectories put back for want of KV cache.
        latency_mean_s, latency_max_s: of a trajectory, from its first routing to its last token.
        price_per_hour: of all devices, in `PRICE_UNIT`.
        notes: what a reader must know.
    """

    name: str
    simulated: bool
    fleet: str
    batches: int
    tokens_per_s: float | None
    response_tokens_per_s: float
    generated_tokens_per_s: float | None
    gpus: float
    step_s: float
    staleness_mean: float
    staleness_max: int
    staleness: Mapping[int, int]
    roles: Sequence[Utilisation]
    running: float | None
    kv_share: float | None
    prefill_share: float | None
    moves_per_batch: float
    interrupting_pulls_per_batch: float
    migrated_per_batch: float
    preemptions: int | None
    latency_mean_s: float | None
    latency_max_s: float | None
    price_per_hour: float | None
    notes: Sequence[str] = field(default=())

    @property
    def cost_per_million(self) -> float | None:
        """The price of a million tokens trained on, prompts included, in `PRICE_UNIT`."""
        if self.price_per_hour is None or not self.tokens_per_s:
            return None
        return self.price_per_hour / 3600 / self.tokens_per_s * 1e6

    def role(self, role: str) -> Utilisation | None:
        """How a role spent its time; None if nothing was seen of it."""
        return next((used for used in self.roles if used.role == role), None)

    def busy(self, role: str) -> float | None:
        """Share of a role's time that is work."""
        used = self.role(role)
        return None if used is None else used.busy

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "name": self.name,
            "simulated": self.simulated,
            "fleet": self.fleet,
            "gpus": self.gpus,
            "batches": self.batches,
            "tokens_per_s": self.tokens_per_s,
            "response_tokens_per_s": self.response_tokens_per_s,
            "generated_tokens_per_s": self.generated_tokens_per_s,
            "step_s": self.step_s,
            "staleness_mean": self.staleness_mean,
            "staleness_max": self.staleness_max,
            "staleness": {str(lag): count for lag, count in self.staleness.items()},
            "busy": {role: self.busy(role) for role in (TRAINER, REPLICA)},
            "bubbles": {used.role: {cause: share for cause, _, share in used.bubbles} for used in self.roles},
            "running": self.running,
            "kv_share": self.kv_share,
            "prefill_share": self.prefill_share,
            "moves_per_batch": self.moves_per_batch,
            "interrupting_pulls_per_batch": self.interrupting_pulls_per_batch,
            "migrated_per_batch": self.migrated_per_batch,
            "preemptions": self.preemptions,
            "latency_mean_s": self.latency_mean_s,
            "latency_max_s": self.latency_max_s,
            "price_per_hour": self.price_per_hour,
            "cost_per_million_tokens": self.cost_per_million,
            "price_unit": PRICE_UNIT,
            "notes": list(self.notes),
        }


def simulated(watched: Watched) -> Figures:
    """The figures of a simulation."""
    result, loads = watched.result, watched.folds.loads
    begin_s, end_s = watched.measured_s
    responses = sum(watched.responses(row.version) for row in watched.measured)
    count = len(loads.replicas)
    seated = [n for column in loads.series.between(begin_s, end_s) for n in column[:count] if n > 0]
    batches, notes = max(1, len(watched.rows)), []
    if watched.folds.sampled:
        notes.append(
            f"Shares of time and bubbles are of {count} of the {loads.of:,} replicas, evenly chosen, "
            "so that watching stays cheap; every other figure is of all."
        )
    return Figures(
        name=watched.name,
        simulated=True,
        fleet=watched.fleet.description,
        batches=len(watched.measured),
        tokens_per_s=result.tokens_per_s,
        response_tokens_per_s=responses / (end_s - begin_s) if end_s > begin_s else 0.0,
        generated_tokens_per_s=result.generated_tokens_per_s,
        gpus=result.gpus,
        step_s=result.step_s,
        staleness_mean=result.staleness_mean,
        staleness_max=result.staleness_max,
        staleness=result.staleness,
        roles=watched.utilisation(),
        running=sum(seated) / len(seated) if seated else None,
        kv_share=result.kv_share,
        prefill_share=result.prefill_share,
        moves_per_batch=result.moves / batches,
        interrupting_pulls_per_batch=watched.run.interrupting_pulls / batches,
        migrated_per_batch=watched.run.evictions / batches,
        preemptions=result.preemptions,
        latency_mean_s=result.latency_mean_s,
        latency_max_s=result.latency_max_s,
        price_per_hour=watched.fleet.price_per_hour,
        notes=tuple(notes),
    )
