"""Cost of a replica's decoding step, and of prefill, for a prompt or for a context that resumes after an interruption.

    step_s = fixed_s(running) + per_token_s * tokens in the KV cache

The first part is for weights, arithmetic, all-reduce and overhead, the second for attention. While the same trajectories run,
the first is constant and the second linear, so that the time of many steps has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from tailrace.fleetsim.cost.capacity import check_parallel, kv_capacity_tokens, kv_shards
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware.devices import Device
from tailrace.fleetsim.hardware.models import ModelShape
from tailrace.repack import ThroughputModel


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Prefill of one model on one replica's devices.

    Args:
        per_token_s: seconds of matrix multiplication for a token.
        per_square_token_s: seconds of causal attention over s tokens, divided by s squared.
        overhead_s: seconds of every prefill.
    """

    per_token_s: float
    per_square_token_s: float = 0.0
    overhead_s: float = 0.0

    @classmethod
    def of(cls, model: ModelShape, device: Device, tensor_parallel: int) -> PrefillCost:
        """The cost of a model on `tensor_parallel` devices, with all arithmetic at the device's prefill rate.

        Raises:
            FleetError: the tensor parallelism is impossible.
        """
        check_parallel(model, device, tensor_parallel)
        flops = tensor_parallel * device.prefill_flops
        return cls(2.0 * model.gemm_params / flops, model.attention_flops_per_square_token / flops)

    def seconds(self, tokens: int, cached: int = 0) -> float:
        """Seconds for a context of `tokens`, of which the first `cached` are in the KV cache already.

        Cached tokens are not computed again, but the others attend to them.
        """
        if tokens <= cached:
            return 0.0
        squares = tokens * tokens - cached * cached
        return self.overhead_s + (tokens - cached) * self.per_token_s + squares * self.per_square_token_s


Sample = tuple[float, int, float]
EXPERT_BANDWIDTH_SHARE = 0.85
"""Share of the memory bandwidth that reading single experts achieves: some 6.2 us per expert, constant up to 128 tokens, on a
GPU of 1.79 TB/s (LLMServingSim's tables)."""
MAX_RUNNING = 65_536
"""The largest batch whose cost may be asked for; a larger one must be a mistake."""


class DecodeCost:
    """Decoding of one model on one replica's devices.

    Args:
        step: seconds of a step without attention, as a function of the number of running trajectories.
        per_token_s: seconds of a step for each token in the KV cache.
        kv_capacity_tokens: tokens that fit into the KV cache.
    `overhead_s` is the fixed cost of a step, `weights_s` that of reading all weights, `row_s` that of one trajectory's
    arithmetic.

    Raises:
        FleetError: a number is negative or not finite.
    """

    __slots__ = ("_fixed_s", "_step", "kv_capacity_tokens", "overhead_s", "per_token_s", "row_s", "weights_s")

    def __init__(self, step: RooflineStep | FittedStep, *, per_token_s: float, kv_capacity_tokens: int) -> None:
        numbers = {
            "seconds per token": per_token_s,
            "overhead": step.overhead_s,
            "seconds for the weights": step.weights_s,
            "seconds per trajectory": step.row_s,
        }
        for what, number in numbers.items():
            if not (number >= 0 and math.isfinite(number)):
                raise FleetError(f"found {what} of decoding of {number!r}, expected a finite number of at least 0")
        if kv_capacity_tokens < 1:
            raise FleetError(f"found a KV cache of {kv_capacity_tokens} tokens, expected at least 1")
        self._step: Callable[[int], float] = step
        self.per_token_s = per_token_s
        self.kv_capacity_tokens = kv_capacity_tokens
        self.overhead_s = step.overhead_s
        self.weights_s = step.weights_s
        self.row_s = step.row_s
        self._fixed_s = [step(running) for running in range(257)]

    @classmethod
    def of(cls, model: ModelShape, device: Device, tensor_parallel: int, *, row_floor: bool = True) -> DecodeCost:
        """The cost of a model on `tensor_parallel` devices.

        If the device comes with a measurement of the model, it is used instead of the roofline.

        Args:
            model: the model.
            device: the kind of device.
            tensor_parallel: number of devices of a replica.
            row_floor: apply the device's least cost of a dense model's step, see ``devices.toml``.

        Raises:
            FleetError: the tensor parallelism is impossible.
            DoesNotFitError: the weights leave no room for the KV cache.
        """
        fitted = device.fitted_decode(model.name, tensor_parallel)
        if fitted is not None:
            return cls.fitted(fitted.k1, fitted.k2, fitted.k3, fitted.k4, fitted.kv_capacity_tokens)
        check_parallel(model, device, tensor_parallel)
        return cls(
            RooflineStep.of(model, device, tensor_parallel, row_floor=row_floor),
            per_token_s=model.kv_bytes_per_token / (kv_shards(model, tensor_parallel) * device.kv_bandwidth),
            kv_capacity_tokens=kv_capacity_tokens(model, device, tensor_parallel),
        )

    @classmethod
    def fitted(cls, k1: float, k2: float, k3: float, k4: float, kv_capacity_tokens: int) -> DecodeCost:
        """A measured cost: k1 K + max(k2, k3 n) + k4, with K in tokens (StaleFlow, equation 11)."""
        return cls(FittedStep(k2, k3, k4), per_token_s=k1, kv_capacity_tokens=kv_capacity_tokens)

    def fixed_s(self, running: int) -> float:
        """Seconds of a step that do not depend on the KV cache. A list access, since every change of a batch calls it.

        Raises:
            FleetError: more than `MAX_RUNNING` trajectories.
        """
        try:
            return self._fixed_s[running]
        except IndexError:
            return self.fixed_table(running)[running]

    def fixed_table(self, most: int) -> list[float]:
        """`fixed_s` of 0 to at least `most` trajectories: the internal list, which must not be changed.

        Raises:
            FleetError: `most` is negative or over `MAX_RUNNING`.
        """
        if not 0 <= most <= MAX_RUNNING:
            raise FleetError(f"found a batch of {most} running trajectories, expected 0 to {MAX_RUNNING}")
        table = self._fixed_s
        if most >= len(table):
            upper = min(MAX_RUNNING, max(most, 2 * len(table)))
            table.extend(map(self._step, range(len(table), upper + 1)))
        return table

    def step_s(self, running: int, kv_tokens: float) -> float:
        """Seconds of one step, which gives each running trajectory a token."""
        return self.fixed_s(running) + self.per_token_s * kv_tokens

    @property
    def roofline_batch(self) -> int:
        """Number of trajectories from which arithmetic costs more than reading the weights (Laminar's B); at least 1."""
        return max(1, math.floor(self.weights_s / self.row_s)) if self.row_s else MAX_RUNNING

    def coefficients(self, *, most_running: int = 128, longest: int = 40_960) -> ThroughputModel:
        """StaleFlow's cost model fitted to this one, for policies; KV sizes are in tokens (equation 2).

        Args:
            most_running: the largest batch to fit to.
            longest: tokens of the longest context to fit to.

        Raises:
            FitError: this cost contradicts the model.
        """
        return fit_coefficients(self, most_running=most_running, longest=longest)


# The cost of a decoding step without the KV cache, as a function of the number of running trajectories.


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


# Fits StaleFlow's four coefficients to the simulator's finer cost of decoding, and measures the error (Appendix B).


class Steps(Protocol):
    """The cost of a decoding step."""

    kv_capacity_tokens: int

    def step_s(self, running: int, kv_tokens: float) -> float:
        """Seconds of one step."""
        ...


def profile_samples(cost: Steps, *, most_running: int = 128, longest: int = 40_960) -> list[Sample]:
    """(tokens in the KV cache, running trajectories, seconds of a step), as an offline profile would measure them.

    Batch sizes are those for which vLLM captures graphs: 1, 2, 4, then multiples of 8. Contexts go from 1/16 of the longest
    that fits (at most `longest` tokens) to all of it.

    Raises:
        FleetError: `most_running` or `longest` is below 1.
    """
    if most_running < 1 or longest < 1:
        raise FleetError(f"found batches up to {most_running} and contexts up to {longest} tokens, expected at least 1")
    samples = []
    for running in (1, 2, 4, *range(8, most_running + 1, 8)):
        if running <= min(most_running, cost.kv_capacity_tokens):
            whole = min(longest, cost.kv_capacity_tokens // running)
            for share in (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0):
                tokens = running * max(1.0, whole * share)
                samples.append((tokens, running, cost.step_s(running, tokens)))
    return samples


def fit_coefficients(cost: Steps, *, most_running: int = 128, longest: int = 40_960) -> ThroughputModel:
    """The coefficients with the least squared error of latency on `profile_samples`, with KV sizes in tokens.

    Raises:
        FitError: the cost contradicts the model.
    """
    return _fitted(tuple(profile_samples(cost, most_running=most_running, longest=longest)))


@lru_cache(maxsize=64)  # a fleet asks when it is checked and when it is built, a search for each split
def _fitted(samples: tuple[Sample, ...]) -> ThroughputModel:
    return ThroughputModel.fit(samples)


def throughput_error(model: ThroughputModel, samples: Sequence[Sample]) -> float:
    """Mean relative error of the model's throughput on samples with at least one running trajectory.

    StaleFlow reports 0.105 over the run of a real instance (Appendix B.2).
    """
    if not samples:
        raise FleetError("found no samples, expected some to measure an error on")
    errors = [abs(model.throughput(tokens, running) * seconds / running - 1) for tokens, running, seconds in samples]
    return math.fsum(errors) / len(errors)
