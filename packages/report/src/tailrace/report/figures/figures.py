"""The figures of a system that matter, of a simulated one or of a real run, under the same definitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.pipeline.controller.members import REPLICA, TRAINER
from tailrace.report.figures.utilisation import Utilisation

PRICE_UNIT = "H20-hours"
"""What the prices of devices are in: the papers give ratios, no currency."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A system in steady state: what comes before, start-up and warm-up, is left out. None is not known.

    Args:
        name: of the system.
        simulated: or measured in a real run.
        fleet: its devices in words.
        gpus: devices; 0 is none, such as on processor cores alone.
        measured_s: from the end of the warm-up to the last batch, on the run's clock.
        batches: that were measured.
        tokens_per_s: trained on, prompts included.
        response_tokens_per_s: trained on, prompts left out.
        generated_tokens_per_s: response tokens that the replicas generated.
        step_s: mean time between two batches.
        staleness_mean, staleness_max: over trajectories trained on.
        staleness: these trajectories by staleness.
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
    gpus: float
    measured_s: tuple[float, float]
    batches: int
    tokens_per_s: float | None = None
    response_tokens_per_s: float
    generated_tokens_per_s: float
    step_s: float
    staleness_mean: float
    staleness_max: int
    staleness: Mapping[int, int]
    roles: Sequence[Utilisation]
    running: float | None
    kv_share: float | None
    prefill_share: float | None = None
    moves_per_batch: float
    interrupting_pulls_per_batch: float
    migrated_per_batch: float
    preemptions: int | None = None
    latency_mean_s: float | None = None
    latency_max_s: float | None = None
    price_per_hour: float | None = None
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
        plain = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        del plain["roles"], plain["measured_s"]
        return {
            **plain,
            "staleness": {str(lag): count for lag, count in self.staleness.items()},
            "busy": {role: self.busy(role) for role in (TRAINER, REPLICA)},
            "bubbles": {used.role: {cause: share for cause, _, share in used.bubbles} for used in self.roles},
            "cost_per_million_tokens": self.cost_per_million,
            "price_unit": PRICE_UNIT,
            "notes": list(self.notes),
        }
