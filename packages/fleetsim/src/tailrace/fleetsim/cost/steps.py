"""The cost of a decoding step without the KV cache, as a function of the number of running trajectories."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailrace.fleetsim.hardware.devices import Device
from tailrace.fleetsim.hardware.models import ModelShape

EXPERT_BANDWIDTH_SHARE = 0.85
"""Share of the memory bandwidth that reading single experts achieves: some 6.2 us per expert, constant up to 128 tokens, on a
GPU of 1.79 TB/s (LLMServingSim's tables)."""


def roofline_s(memory_s: float, compute_s: float, exponent: float) -> float:
    """Seconds of a matrix multiplication, from the time to read its weights and the time to compute.

    The exponent says how well the two overlap: infinity gives the larger of both, 1 their sum.
    """
    larger, smaller = max(memory_s, compute_s), min(memory_s, compute_s)
    if smaller <= 0.0 or math.isinf(exponent):
        return larger
    return float(larger * (1.0 + (smaller / larger) ** exponent) ** (1.0 / exponent))


@dataclass(frozen=True, slots=True)
class RooflineStep:
    """A step on a modelled device.

    Args:
        overhead_s: seconds of scheduling, kernel launches, and the latency of every all-reduce.
        dense_s: seconds to read the weights that every token uses.
        experts_s: seconds to read all experts.
        expert_share: share of the experts that one token uses.
        row_s: seconds of arithmetic for one trajectory.
        exponent: exponent of `roofline_s`.
        floor_s: least seconds of the matrix multiplications.
        allreduce_row_s: seconds to reduce one trajectory's activations in all layers.
    """

    overhead_s: float
    dense_s: float
    experts_s: float
    expert_share: float
    row_s: float
    exponent: float
    floor_s: float
    allreduce_row_s: float

    @classmethod
    def of(cls, model: ModelShape, device: Device, tensor_parallel: int, *, row_floor: bool = True) -> RooflineStep:
        """The constants of a model on `tensor_parallel` devices, a number that was checked before."""
        size = tensor_parallel
        row_s = 2.0 * model.gemm_params / (size * device.gemm_flops[size])
        overhead_s = device.cpu_s + model.layers * device.element_s
        allreduce_row_s = 0.0
        if size > 1:
            # Two all-reduces in a layer, after attention and after the feed-forward part, of bf16 activations.
            overhead_s += 2 * model.layers * device.allreduce_latency_s[size]
            moved = model.hidden * model.bytes_per_param * 2 * (size - 1) / size
            allreduce_row_s = 2 * model.layers * moved / device.allreduce_bandwidth
        expert_bandwidth = size * EXPERT_BANDWIDTH_SHARE * device.hbm_bandwidth
        return cls(
            overhead_s=overhead_s,
            dense_s=model.dense_gemm_params * model.bytes_per_param / (size * device.weight_bandwidth[size]),
            experts_s=model.all_expert_params * model.bytes_per_param / expert_bandwidth,
            expert_share=model.experts_per_token / model.experts if model.experts else 0.0,
            row_s=row_s,
            exponent=device.roofline_exponent[size],
            floor_s=device.row_floor * row_s if row_floor and device.row_floor > 1 and not model.experts else 0.0,
            allreduce_row_s=allreduce_row_s,
        )

    @property
    def weights_s(self) -> float:
        """Seconds to read all weights."""
        return self.dense_s + self.experts_s

    def __call__(self, running: int) -> float:
        """Seconds of a step without attention."""
        # An expert is read if one of the running trajectories goes through it.
        memory_s = self.dense_s + self.experts_s * (1.0 - (1.0 - self.expert_share) ** running)
        gemm_s = roofline_s(memory_s, running * self.row_s, self.exponent)
        return self.overhead_s + running * self.allreduce_row_s + max(gemm_s, self.floor_s)


@dataclass(frozen=True, slots=True)
class FittedStep:
    """A measured step: max(k2, k3 n) + k4 (StaleFlow, equation 11)."""

    weights_s: float
    row_s: float
    overhead_s: float

    def __call__(self, running: int) -> float:
        """Seconds of a step without attention."""
        return max(self.weights_s, self.row_s * running) + self.overhead_s
