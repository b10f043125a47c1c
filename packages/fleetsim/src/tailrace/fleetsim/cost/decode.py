"""Cost of a replica's decoding step.

    step_s = fixed_s(running) + per_token_s * tokens in the KV cache

The first part is for weights, arithmetic, all-reduce and overhead, the second for attention. While the same trajectories run,
the first is constant and the second linear, so that the time of many steps has a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tailrace.fleetsim.cost.capacity import check_parallel, kv_capacity_tokens, kv_shards
from tailrace.fleetsim.cost.steps import FittedStep, RooflineStep
from tailrace.fleetsim.cost.throughput_fit import fit_coefficients
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware.devices import Device
from tailrace.fleetsim.hardware.models import ModelShape
from tailrace.repack import ThroughputModel

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

    def steps_s(self, running: int, kv_tokens: float, steps: int) -> float:
        """Seconds of several steps of one batch; each step adds `running` tokens to the KV cache."""
        grown = running * steps * (steps - 1) / 2
        return steps * self.step_s(running, kv_tokens) + self.per_token_s * grown

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
