"""Table ``[fleet]`` of a configuration: what only the simulator reads. Strict, as the rest of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware.links import CROSS_DATACENTER
from tailrace.fleetsim.tables import Count, Positive, Seconds, Share, Strict
from tailrace.fleetsim.workload.config import WorkloadConfig
from tailrace.pipeline.config.loading import explain


class _Strict(BaseModel):
    model_config = Strict.model_config


class TrainerFleet(_Strict):
    """The trainer's devices.

    Args:
        device: by name, or a device file.
        gpus: devices; where placement is colocated, those of the rollout.
        mfu: share of peak arithmetic; the device's own figure if None.
        passes: forward passes of experience preparation (old log-probabilities; 2 with a reference model).
        optimizer_s: seconds of an optimizer step beside its gradients.
        data_s: seconds to sample a batch and move it to the devices.
        tensor_parallel, pipeline_parallel, context_parallel: their product is the number of devices that compute one sequence.
        critic: whether a critic of the same size is trained and evaluated too, on the same devices (PPO). Each of `passes` is
            then one of both models; a frozen reference model beside them is half of one.
        site: where the trainer is; a pool of replicas of another site gets its weights over that site's link.
        layer_s: seconds that a layer takes for each sequence beyond its arithmetic, in a forward pass (a backward pass takes
            twice as long): kernels that are too small, and messages between the devices that compute it.
    """

    device: str = "H800"
    gpus: Count | None = None
    mfu: Annotated[float, Field(gt=0, le=1)] | None = None
    passes: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    critic: bool = False
    site: str = ""
    optimizer_s: Seconds = 0.5
    data_s: Seconds = 1.9
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    context_parallel: Count = 1
    layer_s: Seconds = 0.0


class RolloutFleet(_Strict):
    """The replicas' devices: a table ``[fleet.rollout]``, or several ``[[fleet.rollout]]`` whose replicas are unequal.

    Args:
        name: of several tables, the pool's own, in the log and for policies; the device's name if empty.
        prompts_per_replica: of several tables, groups that each generates at once; `pipeline.prompts_per_replica` if None.
        site: where they are; empty: where the trainer is.
        hybrid: of several tables, whether the trainer stands on these devices, where placement is colocated.
        tensor_parallel: devices of one replica.
        max_running: trajectories in one decode batch (max_num_seqs).
        step_s: seconds of every decode step that the device's own constants do not have: the engine around it.
        prefill_mfu: share of peak arithmetic in prefill; the device's own figure if None.
        memory_share: share of a device's memory that the engine may use (vLLM: `gpu_memory_utilization`); the device's own
            figure if None. An engine that shares its devices with a trainer or a judge has less.
        prefix_cached: share of what a replica had whose prefill is saved: the context of a trajectory that comes back to it
            under the same weights, and the prompt of a group that it has another trajectory of; 0: it has no prefix cache.
        start_s: seconds for a replica to start.
        restart_s: seconds to replace one that died: a machine, the engine, its relay (Laminar, section 8.5: 252 s).
        resize_s: seconds to start one anew on another number of devices, on machines that it has.
    """

    device: str = "H800"
    gpus: Count | None = None
    name: str = ""
    site: str = ""
    hybrid: bool = False
    prompts_per_replica: Count | None = None
    tensor_parallel: Count = 1
    max_running: Count = 1024
    step_s: Seconds = 0.0
    prefill_mfu: Annotated[float, Field(gt=0, le=1)] | None = None
    memory_share: Annotated[float, Field(gt=0, le=1)] | None = None
    prefix_cached: Share = 0.0
    start_s: Seconds = 0.0
    restart_s: Seconds = 252.0
    resize_s: Seconds = 30.0


class SiteLink(_Strict):
    """The link from the trainer's site to another, ``[fleet.sites.NAME]``. Each version crosses it once.

    Args:
        bandwidth: bytes per second; the default is StreamRL's dedicated line of 80 Gbps (section 7).
        latency_s: of a message of any size; that of some 500 km of fibre there and back is assumed.
        share: share of a version's bytes that cross: below 1 for deltas, or for weights that are sent with fewer bits.
    """

    bandwidth: Positive = CROSS_DATACENTER.bandwidth
    latency_s: Seconds = CROSS_DATACENTER.startup_s
    share: Annotated[float, Field(gt=0, le=1)] = 1.0


class DelayConfig(_Strict):
    """Everything that takes time beside computing.

    Args:
        reward_s: seconds until a finished trajectory has its reward.
        predict_s: seconds until the ranker has answered.
        report_s: finished trajectories are reported at multiples of this.
        snapshot_s: replicas report their load so often.
        copy_s: seconds for which a checkpoint blocks the trainer, while its state is copied into host memory.
        checkpoint_s: seconds from then until a checkpoint is durable; the trainer goes on meanwhile.
        route_s: seconds for a command to be carried out (tokens travel; nothing else waits).
        detect_s: seconds until a death is noticed.
        hang_s: seconds of silence until a member counts as down; without it those of `deadlines.silent_s`.
        trainer_restart_s: seconds for a new trainer to come up from a checkpoint.
        relay_restart_s, data_restart_s: seconds for a new relay, and for the data role over its store.
    """

    reward_s: Seconds = 0.0
    report_s: Positive = 1.0
    snapshot_s: Positive = 5.0
    copy_s: Seconds = 0.0
    checkpoint_s: Seconds = 10.0
    route_s: Seconds = 0.0
    detect_s: Seconds = 5.0
    hang_s: Seconds = 60.0
    trainer_restart_s: Seconds = 120.0
    relay_restart_s: Seconds = 0.0
    data_restart_s: Seconds = 0.0
    predict_s: Seconds = 0.0


class RankerFleet(_Strict):
    """How the ranker errs and learns. By default it knows the mean length of each prompt's own samples, from the start.

    Args:
        recall20, recall10, recall5: the part that it finds of the 20, 10 and 5 % of prompts whose responses are longest on
            average (`tailrace.fleetsim.noisy_oracle`); 1: all of them.
        examples: prompts' worth of finished responses before it has learned; until then it has no length.
        learn_s: seconds that it learns each time, and answers with what it knew before.
        drift: share by which its errors grow with each version of the weights since it learned; 0.1: by a tenth. An oracle has
            none that could.
        band: recall, of the largest of these tails, that is lost before it learns anew.
    """

    recall20: Annotated[float, Field(ge=0.2, le=1)] | None = None
    recall10: Annotated[float, Field(ge=0.1, le=1)] | None = None
    recall5: Annotated[float, Field(ge=0.05, le=1)] | None = None
    examples: Annotated[int, Field(ge=0)] = 0
    learn_s: Seconds = 0.0
    drift: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    band: Share = 0.05

    @property
    def recalls(self) -> dict[float, float]:
        """Recall by share of the tail; empty if it does not err."""
        found = {0.2: self.recall20, 0.1: self.recall10, 0.05: self.recall5}
        return {share: recall for share, recall in found.items() if recall is not None}


class ScoringPool(_Strict):
    """The workers that score one kind of the workload, ``[fleet.scoring.KIND]``.

    Args:
        workers: scores that run at once; others wait in the order in which their trajectories finished. None: those of the
            run's own pool of that name, `reward.KIND.workers`.
        min_timeout_s, max_timeout_s, timeout_factor: a score ends after min(max(min, factor x anchor), max) seconds with a
            reward of 0; the anchor is the slowest right one of its prompt so far (RollPacker, section 4.3). With the first two
            equal the timeout is fixed. None: the value of `reward.code`.
        at_step_end: no score starts before all of the step's trajectories are finished, as where scoring is a stage of its own.
        slows: the scores run on the replicas' own devices (a judge beside the actor). While any runs, the replicas' work takes
            so many times as long.
    """

    workers: Count | None = None
    min_timeout_s: Positive | None = None
    max_timeout_s: Positive | None = None
    timeout_factor: Positive | None = None
    at_step_end: bool = False
    slows: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0


class FailureConfig(_Strict):
    """Failures that come by themselves, each a Poisson process.

    Args:
        per_1000_gpu_days: failures of devices; 0.47 for Llama 3 405B's cluster, 6.5 per node for Meta's RSC-1.
        slow_share: share of replicas that run at `slow_speed`.
    """

    per_1000_gpu_days: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    slow_share: Share = 0.0
    slow_speed: Annotated[float, Field(gt=0, le=1)] = 0.7


class Goal(_Strict):
    """The training whose duration and price are wanted: a number of steps or of trained tokens, prompts included."""

    steps: Count | None = None
    tokens: Positive | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Goal:
        if (self.steps is None) == (self.tokens is None):
            raise ValueError("steps or tokens, and not both")
        return self

    def __str__(self) -> str:
        if self.steps is not None:
            return f"{self.steps:,} step{'s' if self.steps != 1 else ''}"
        return f"{self.tokens:,.0f} tokens"

    def seconds(self, step_s: float, tokens_per_s: float) -> float | None:
        """How long it takes at this speed; None if nothing was trained on.

        Args:
            step_s: seconds of a step.
            tokens_per_s: trained tokens per second.
        """
        if self.steps is not None:
            return self.steps * step_s or None
        return self.tokens / tokens_per_s if self.tokens is not None and tokens_per_s else None


def _as_pools(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else (value,) if isinstance(value, Mapping) else value


Pools = Annotated[tuple[RolloutFleet, ...], BeforeValidator(_as_pools), Field(min_length=1)]
"""One table, or several: `RolloutFleet` for each."""


class FleetConfig(_Strict):
    """A fleet and what it generates.

    Args:
        model: by name.
        profile: a machine measured by ``tailrace profile``, by name or as a file, where there is no `model`.
        placement: `split` between trainer and replicas, or `colocated`: both use all devices in turn, or those of the table
            `rollout` with `hybrid`.
        weights: how they travel: over `relays` (Laminar), from a parameter `store` on the replicas' nodes (StaleFlow), or
            by `global` synchronisation between the devices, where trainer and replicas wait for each other.
        warm_up: batches before measuring starts; a third of all, 10 at most, if None.
        steady: the run would go on beyond its last batch, so that nothing runs dry before the end of what is measured;
            otherwise it ends there, as a real one. Where there is a `model`, true if None.
        fit_cost: give policies the cost model of these devices, as `tailrace fit-cost` finds it; otherwise that of the
            configuration.
        fit_stages: begin with the replicas that provisioning `balanced` chooses from what `tailrace fit-cost` would find of
            both stages on these devices, instead of those of `rollout`.
        hand_over: where placement is colocated, devices change hands in the seconds that weights and the trainer's state take
            over each device's PCIe link; otherwise in no time.
        cross_datacenter: the replicas are in another datacenter than the trainer.
        prices: price of one device for an hour, by the device's name, in any one currency.
        scoring: a pool for each kind of `workload.scoring`, where it differs from the run's own (`reward`); without kinds
            every trajectory is scored at once.
        sites: the links to sites other than the trainer's, by name.
        goal: the training whose duration and price are wanted; the configuration's `pipeline.steps` if None.
        ranker: how the ranker errs and learns, in a run that has one.
    """

    model: str | None = None
    profile: str | None = None
    placement: Literal["split", "colocated"] = "split"
    weights: Literal["relays", "store", "global"] = "relays"
    warm_up: Annotated[int, Field(ge=0)] | None = None
    steady: bool | None = None
    fit_cost: bool = True
    fit_stages: bool = False
    hand_over: bool = True
    cross_datacenter: bool = False
    prices: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
    goal: Goal | None = None
    trainer: TrainerFleet = TrainerFleet()
    rollout: Pools = (RolloutFleet(),)
    sites: dict[str, SiteLink] = {}
    delays: DelayConfig = DelayConfig()
    failures: FailureConfig = FailureConfig()
    scoring: dict[str, ScoringPool] = {}
    ranker: RankerFleet | None = None
    workload: WorkloadConfig | None = None


def site_link(fleet: Mapping[str, Any], site: str) -> SiteLink:
    """The link to a site of the table ``[fleet]``, which need not name it.

    Raises:
        FleetError: what it says of the site is wrong.
    """
    sites = fleet.get("sites", {})
    try:
        return SiteLink.model_validate(sites.get(site, {}) if isinstance(sites, Mapping) else sites)
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(part) for part in first["loc"]]
        raise FleetError(f"table 'fleet.sites.{site}': {explain(SiteLink, path, first)}") from None


def fleet_config(table: Mapping[str, Any]) -> FleetConfig:
    """The table as a model.

    Raises:
        FleetError: a key or value is wrong.
    """
    try:
        return FleetConfig.model_validate(dict(table))
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(part) for part in first["loc"]]
        if path[:2] == ["rollout", "0"] and isinstance(table.get("rollout"), Mapping):
            del path[1]  # the only table
        raise FleetError(f"table 'fleet': {explain(FleetConfig, path, first, within='fleet.')}") from None
