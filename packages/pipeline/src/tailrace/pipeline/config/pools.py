"""The tables `[[rollout.pools]]` of a configuration file: replicas that are not all alike."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from tailrace.pipeline.config.cost_model import CostModelConfig
from tailrace.pipeline.config.fields import Positive


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class PoolConfig(_Strict):
    """Replicas that are alike: of the same devices and engine options, at one site."""

    name: str
    """its name, in the log and for policies"""
    count: Positive = 1
    """replicas at the start"""
    site: str = ""
    """where they stand: one of relay.sites; empty: the trainer's site"""
    device: str = ""
    """kind of their devices, as Ray calls it, such as H20; empty: any"""
    tp: Positive | None = None
    """devices that each spans (tensor parallelism); none: rollout.options.tensor_parallel_size, else 1"""
    prompts_per_replica: Positive | None = None
    """groups that each generates at once; none: pipeline.prompts_per_replica"""
    cost_model: CostModelConfig | None = None
    """decoding time of these replicas for the policies that plan with it; none: rollout.cost_model"""
    hybrid: bool = False
    """whether they stand on the trainer's devices, with trainer.colocated = true, and yield to it (provisioning `hybrid`)"""
    options: dict[str, Any] = {}
    """options of the engine in which they differ from rollout.options"""
