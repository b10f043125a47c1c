"""Cost of prefill, for a prompt or for a context that resumes after an interruption."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.fleetsim.cost.capacity import check_parallel
from tailrace.fleetsim.hardware.devices import Device
from tailrace.fleetsim.hardware.models import ModelShape


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
