"""Devices of both stages from what was measured of them, without a simulation: StreamRL's Algorithm 1 (section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.cli.errors import CommandError
from tailrace.pipeline.config.models import Choice, RunConfig
from tailrace.pipeline.config.policies import build_policy
from tailrace.repack import Balanced, StageShare, batch_like, share_devices


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """How devices are shared between both stages.

    Args:
        devices: in all.
        share: those of each stage.
    """

    devices: int
    share: StageShare

    def settings(self) -> dict[str, Any]:
        """This split as a layer of a configuration."""
        generation = self.share.generation
        return {
            "trainer": {"processes": self.share.train},
            "rollout": {"replicas": generation.replicas, "options": {"tensor_parallel_size": generation.size}},
            "pipeline": {"provisioning": {"devices": self.devices - self.share.train}},
        }

    def __str__(self) -> str:
        generation, share = self.share.generation, self.share
        left = self.devices - generation.devices - share.train
        return (
            f"{generation.devices} of {self.devices} devices generate (replicas: {generation.replicas}, of {generation.size} "
            f"each), {share.train} train{f', {left} would save nothing' if left else ''}"
        )


def is_measured(config: RunConfig) -> bool:
    """Whether a configuration has what was measured of both stages, and no fleet to simulate."""
    measured = {"replica_costs", "training_times", "lengths"} <= set(config.pipeline.provisioning.options)
    return measured and config.fleet.get("model") is None


def plan_measured(config: RunConfig, devices: int) -> MeasuredPlan:
    """Share devices so that an iteration takes as little as can be, if both stages overlap.

    Raises:
        CommandError: the stages of the configuration do not overlap.
        ConfigError: an option is wrong.
        RepackError: nothing fits.
    """
    pipeline = config.pipeline
    free = {name: value for name, value in pipeline.provisioning.options.items() if name not in ("devices", "fewest")}
    trajectories = pipeline.prompts_per_step * pipeline.samples_per_prompt
    given = {"slots": pipeline.prompts_per_replica * pipeline.samples_per_prompt, "trajectories": trajectories}
    policy = build_policy("provisioning", Choice(name=pipeline.provisioning.name, **free), given)
    assert isinstance(policy, Balanced)
    if build_policy("admission", pipeline.admission).gate(pipeline.prompts_per_step).bound == 0:
        raise CommandError(
            f"key 'pipeline.admission': found {pipeline.admission.name!r}, where stages take turns, expected stages that "
            "overlap, such as with 'one-step'; a table 'fleet' with a model is simulated instead"
        )
    batch = batch_like(policy.lengths, trajectories)
    share = share_devices(devices, batch, policy.replica_costs, policy.training_times, slots=policy.slots)
    return MeasuredPlan(devices, share)
