"""The cost of a decoding step, as a table of a configuration file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


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
