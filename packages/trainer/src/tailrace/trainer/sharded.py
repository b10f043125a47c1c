"""The policy sharded by FSDP2, with its optimizer on the local shards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from tailrace.paramserver.layout import Layout, from_fsdp2
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.errors import NonFiniteGradientError, TrainerConfigError
from tailrace.trainer.muon import MuonWithAdamW
from tailrace.trainer.policy import PREFIX, Policy

SMALL_MODEL_PARAMETERS = 50_000_000
"""Up to this size the model is one FSDP unit, since gathering it layer by layer would cost more than it saves."""


class ShardedPolicy:
    """Parameters, gradients and AdamW state, each rank holding its share of every parameter's first dimension.

    The optimizer works on plain tensors that are views of the shards. The arithmetic is the same as on distributed tensors,
    without their dispatch cost on every operation.
    """

    def __init__(self, policy: Policy, config: TrainerConfig, device: torch.device, world_size: int) -> None:
        self.config = config
        self.device = device
        dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
        precision = (
            MixedPrecisionPolicy()
            if dtype is torch.float32
            else MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        )
        mesh = dist.device_mesh.init_device_mesh(device.type, (world_size,))
        self._whole = sum(parameter.numel() for parameter in policy.parameters()) <= SMALL_MODEL_PARAMETERS
        if not self._whole:
            blocks = set(getattr(policy.lm, "_no_split_modules", None) or ())
            for module in policy.lm.modules():
                if type(module).__name__ in blocks:
                    fully_shard(module, mesh=mesh, mp_policy=precision)
        self.module: Any = fully_shard(policy, mesh=mesh, mp_policy=precision)
        for module in self.module.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                # Token weights refer to the whole mini-batch already, so ranks' gradients are added, not averaged.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self.module.train()
        self.dtype = dtype
        self.parameters: dict[str, DTensor] = {
            name.removeprefix(PREFIX): parameter for name, parameter in self.module.named_parameters()
        }
        with torch.no_grad():
            self.shards: dict[str, Tensor] = {
                name: parameter.to_local().detach() for name, parameter in self.parameters.items()
            }
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Forget the moments and start the learning-rate schedule again."""
        self.optimizer: Any = torch.optim.AdamW(
            list(self.shards.values()),
            lr=self.config.lr,
            betas=self.config.betas,
            weight_decay=self.config.weight_decay,
            fused=True,
        )
        self.steps = 0

    def use_muon(self, lr_scale: float) -> None:
        """Use Muon for the layers' matrices from now on; see `MuonWithAdamW`.

        Args:
            lr_scale: Muon's learning rate as a multiple of AdamW's.

        Raises:
            TrainerConfigError: matrices are sharded, but Muon needs whole ones.
        """
        if dist.get_world_size() > 1:
            raise TrainerConfigError("found Muon with several processes, expected one: it needs whole matrices")
        self.optimizer = MuonWithAdamW(
            self.shards, betas=self.config.betas, weight_decay=self.config.weight_decay, muon_lr_scale=lr_scale
        )
        self.steps = 0

    @contextlib.contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[Any]:
        """Run a forward and backward pass in this context. A small model's gradients are summed over ranks after the last."""
        if self._whole:
            self.module.set_requires_gradient_sync(last)
            self.module.set_reshard_after_backward(last)
        yield self.module

    def apply_gradients(self, lr: float) -> float:
        """Clip the gradients, do an optimizer step and drop the gradients.

        Returns:
            The 2-norm of the whole gradient before clipping.

        Raises:
            NonFiniteGradientError: a gradient is not finite. The weights are unchanged; gradients are dropped.
        """
        gradients = []
        for name, parameter in self.parameters.items():
            shard = self.shards[name]
            shard.grad = parameter.grad.detach().to_local() if parameter.grad is not None else torch.zeros_like(shard)
            gradients.append(shard.grad)
            parameter.grad = None
        squares = torch.stack(torch._foreach_norm(gradients)).double().square().sum()
        dist.all_reduce(squares)
        norm = float(squares.sqrt())
        if not norm < float("inf"):
            self.optimizer.zero_grad()
            raise NonFiniteGradientError(
                f"found a gradient of norm {norm} at optimizer step {self.steps}, expected a finite one; the weights are "
                "unchanged: lower lr or grad_clip_norm, or look at the batch's log-probabilities"
            )
        limit = self.config.grad_clip_norm
        if 0 < limit < norm:
            torch._foreach_mul_(gradients, limit / norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return norm

    def drop_gradients(self) -> None:
        """Drop the gradients of a step that did not finish."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def layout(self) -> Layout:
        """Which rank holds which part of which parameter, in the dtype that is computed in; without communication."""
        dtype = str(self.dtype).removeprefix("torch.")
        return from_fsdp2(self.parameters).in_dtypes(lambda _: dtype)

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Unsharded float32 parameters under Hugging Face names, tied ones once. Every rank must run through them."""
        single = dist.get_world_size() == 1
        for name, parameter in self.parameters.items():
            yield name, self.shards[name] if single else parameter.detach().full_tensor()
