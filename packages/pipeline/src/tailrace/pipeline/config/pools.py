"""The tables `[[rollout.pools]]` of a configuration file: replicas that are not all alike."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from tailrace.pipeline.config.fields import STRICT, Positive


class _Strict(BaseModel):
    model_config = STRICT


class CostModelConfig(_Strict):
    """Seconds of a decoding step: k1 x tokens in the KV cache + max(k2, k3 x trajectories) + k4 (StaleFlow, equation 11).

    `tailrace fit-cost RUN` fits the coefficients to a run's measurements.
    """

    k1: float = Field(ge=0)
    """seconds for each token in the KV cache"""
    k2: float = Field(ge=0)
    """least seconds of a step's matrix multiplications (reading the weights)"""
    k3: float = Field(ge=0)
    """seconds of a step's matrix multiplications for each trajectory"""
    k4: float = Field(ge=0)
    """seconds of overhead in a step"""


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
