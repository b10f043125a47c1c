"""A simulation's results, measured from the end of its warm-up to its last batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.fleetsim.host.recorder import BatchRow
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.fleetsim.results.log import MemoryLog


@dataclass(frozen=True, kw_only=True)
class Result:
    """A simulation's results.

    Args:
        tokens_per_s: tokens of a batch, prompts included, over the time between two steps (Laminar, section 8).
        step_s: mean time between two steps.
        staleness_max, staleness_mean: staleness of trajectories trained on, by the versions that generated them.
        staleness: trajectories by staleness.
        utilisation: share of its time that a role is busy, by role: computing, not waiting, publishing or pulling.
        lost_trajectories: admitted, and neither trained on, filtered, failed nor surplus at the end.
        events: the event log; empty if it was not kept.
        duration_s: simulated seconds of the whole run.
        generated_tokens_per_s: response tokens that all replicas generated per second.
        kv_share: share of the KV cache in use while a replica is busy.
        prefill_share: share of a busy replica's time that goes into prefill.
        latency_mean_s, latency_max_s: seconds from a trajectory's first routing to its last token.
        pull_mean_s: mean seconds from a replica's `Pull` until its weights are complete.
        stall_s: the trainer's stall for one publish.
        preparation_share: share of a step's time for experience preparation.
        trajectories: trained on.
        handled_events: events that the controller took in.
        moves: replicas of which relocation moved work.
        preemptions: trajectories put back because a KV cache was full.
        gpus: devices in all as the run began; what provisioning adds or gives back later counts neither here nor below.
        gpu_hours: those devices times simulated time.
        cost: the price of those in the user's currency; None without prices.
        devices: number of devices by name.
        goal: the training of `finish_s`, in words; empty if the fleet has none.
        finish_s: seconds that it takes at the measured speed.
        failure: why the controller gave up, None if it did not.
    """

    tokens_per_s: float
    step_s: float
    staleness_max: int
    staleness_mean: float
    staleness: dict[int, int]
    utilisation: dict[str, float]
    lost_trajectories: int
    events: MemoryLog
    duration_s: float
    generated_tokens_per_s: float
    kv_share: float
    prefill_share: float
    latency_mean_s: float
    latency_max_s: float
    pull_mean_s: float
    stall_s: float
    preparation_share: float
    trajectories: int
    handled_events: int
    moves: int
    preemptions: int
    gpus: int
    gpu_hours: float
    cost: float | None
    devices: Mapping[str, int] = field(default_factory=dict)
    goal: str = ""
    finish_s: float | None = None
    batches: list[BatchRow] = field(default_factory=list)
    failure: str | None = None

    @property
    def cost_per_mtoken(self) -> float | None:
        """Price of a million trained tokens at the measured throughput; None without prices."""
        if self.price_per_hour is None or not self.tokens_per_s:
            return None
        return self.price_per_hour / 3600 / self.tokens_per_s * 1e6

    @property
    def price_per_hour(self) -> float | None:
        """Price of all devices for an hour; None without prices."""
        return self.cost / self.duration_s * 3600 if self.cost is not None and self.duration_s else None


def result_of(simulation: Simulation) -> Result:
    """The result of a simulation that has run."""
    fleet, view, standing = simulation.fleet, simulation.controller.view, simulation.rows
    begin, end = simulation.measured()
    rows = standing[fleet.warm_up :]
    window_s = end.at_s - begin.at_s
    staleness: dict[int, int] = {}
    for row in rows:
        for lag, count in row.lags.items():
            staleness[lag] = staleness.get(lag, 0) + count
    counted = sum(staleness.values())
    replica_s = window_s * max(1, len(simulation.models.replicas))
    busy_s = end.replica_busy_s - begin.replica_busy_s
    trainer_s = end.trainer_busy_s - begin.trainer_busy_s
    pulls, latencies = end.pulls - begin.pulls, end.latencies - begin.latencies
    tokens_per_s, step_s = _over(sum(row.tokens for row in rows), window_s), _over(window_s, len(rows))
    return Result(
        tokens_per_s=tokens_per_s,
        step_s=step_s,
        staleness_max=max(staleness, default=0),
        staleness_mean=_over(sum(lag * count for lag, count in staleness.items()), counted),
        staleness=dict(sorted(staleness.items())),
        utilisation={"trainer": _over(trainer_s, window_s), "replica": _over(busy_s, replica_s)},
        lost_trajectories=simulation.controller.view.lost_groups * simulation.fleet.samples,
        events=MemoryLog(simulation.log.instants),
        duration_s=simulation.now,
        generated_tokens_per_s=_over(end.generated_tokens - begin.generated_tokens, window_s),
        kv_share=_over(end.kv_share_s - begin.kv_share_s, busy_s),
        prefill_share=_over(end.prefill_s - begin.prefill_s, busy_s),
        latency_mean_s=_over(end.latency_sum_s - begin.latency_sum_s, latencies),
        latency_max_s=simulation.world.tokens.latency_max_s,
        pull_mean_s=_over(end.pulling_s - begin.pulling_s, pulls),
        stall_s=fleet.weights.stall_s,
        preparation_share=_over(end.preparing_s - begin.preparing_s, window_s),
        trajectories=sum(sum(row.lags.values()) for row in standing),
        handled_events=simulation.handled,
        moves=view.moves,
        preemptions=end.preemptions,
        gpus=fleet.gpus,
        gpu_hours=fleet.gpus * simulation.now / 3600,
        cost=None if fleet.price_per_hour is None else fleet.price_per_hour * simulation.now / 3600,
        devices=fleet.devices,
        goal="" if fleet.goal is None else str(fleet.goal),
        finish_s=None if fleet.goal is None else fleet.goal.seconds(step_s, tokens_per_s),
        batches=standing,
        failure=view.failure,
    )


def _over(value: float, by: float) -> float:
    return value / by if by else 0.0
