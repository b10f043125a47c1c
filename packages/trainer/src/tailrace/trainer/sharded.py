"""The policy sharded by FSDP2, with its optimizer on the local shards.

ranks = cells x ranks of a cell        (a mesh "replicate" x "shard")
forward, backward                      within a cell: gathers parameters, sums gradients over its shards
total_gradients                        over cells: adds up their sums, and scales once
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from tailrace.trainer.optimizer import MuonWithAdamW, adamw, clip_gradients
from tailrace.trainer.policy import PREFIX, Policy

SMALL_MODEL_PARAMETERS = 50_000_000
"""Up to this size the model is one FSDP unit, since gathering it layer by layer would cost more than it saves."""


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def parameter_dtype(config: TrainerConfig) -> torch.dtype:
    """The dtype of parameters, gradient sums and optimizer state."""
    return torch.promote_types(DTYPES[config.dtype], torch.float32)


class ShardedPolicy:
    """Parameters, gradients and AdamW state, each rank holding its share of every parameter's first dimension.

    The optimizer works on plain tensors that are views of the shards. The arithmetic is the same as on distributed tensors,
    without their dispatch cost on every operation.

    `ranks` is the number of ranks of a cell, `place` this rank's within its `cell`, both from 0. Ranks of a cell follow each
    other.

    Args:
        policy: the model, on the CPU, in `parameter_dtype`.
        config: the settings.
        device: this rank's device.
        rank: this process.
        world_size: number of processes.
    """

    def __init__(self, policy: Policy, config: TrainerConfig, device: torch.device, rank: int, world_size: int) -> None:
        self.config = config
        self.device = device
        self.dtype = DTYPES[config.dtype]
        self.cells, self.ranks = config.cells, world_size // config.cells
        self.cell, self.place = divmod(rank, self.ranks)
        if config.cells == 1:
            self._mesh: Any = dist.device_mesh.init_device_mesh(device.type, (world_size,))
            self._replicas: Any = None
        else:
            shape = (self.cells, self.ranks)
            mesh = dist.device_mesh.init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
            self._mesh, self._replicas = mesh["shard"], mesh.get_group("replicate")
        self.group: Any = self._mesh.get_group()
        self._whole = sum(parameter.numel() for parameter in policy.parameters()) <= SMALL_MODEL_PARAMETERS
        self.module: Any = self.shard(policy)
        for module in self.module.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                # Gradients are sums over tokens, scaled once at the end: ranks' are added, not averaged.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self.module.train()
        self.parameters: dict[str, DTensor] = {
            name.removeprefix(PREFIX): parameter for name, parameter in self.module.named_parameters()
        }
        with torch.no_grad():
            self.shards: dict[str, Tensor] = {
                name: parameter.to_local().detach() for name, parameter in self.parameters.items()
            }
        self.reset_optimizer()

    def shard(self, policy: Policy, *, frees: bool | None = None) -> Any:
        """Shard a model over the ranks of each cell: layer by layer, a small one as a whole.

        Args:
            policy: the model.
            frees: whether each part is given back after its forward pass; None: all but the outermost.
        """
        dtype, wide = self.dtype, parameter_dtype(self.config)
        precision = (
            MixedPrecisionPolicy()
            if dtype is wide
            else MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=wide, cast_forward_inputs=False)
        )
        if not self._whole:
            blocks = set(getattr(policy.lm, "_no_split_modules", None) or ())
            for module in policy.lm.modules():
                if type(module).__name__ in blocks:
                    fully_shard(module, mesh=self._mesh, mp_policy=precision)
        return fully_shard(policy, mesh=self._mesh, mp_policy=precision, reshard_after_forward=frees)

    def reset_optimizer(self) -> None:
        """Forget the moments and start the learning-rate schedule again."""
        config = self.config
        self.optimizer: Any = adamw(
            self.shards.values(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay
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
        """Run a forward and backward pass in this context, which adds to the gradients.

        A small model's are summed over the ranks of the cell after the last micro-batch.
        """
        if self._whole:
            self.module.set_requires_gradient_sync(last)
            self.module.set_reshard_after_backward(last)
        yield self.module

    def total_gradients(self, divisor: float) -> None:
        """Add the gradients of all cells up, and divide them. Collective. A cell may have none."""
        gradients = []
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad.to_local())
        if self._replicas is not None:
            for gradient in gradients:
                dist.all_reduce(gradient, group=self._replicas)
        torch._foreach_div_(gradients, divisor)

    def apply_gradients(self, lr: float) -> float:
        """Clip the gradients, do an optimizer step and drop the gradients. `total_gradients` comes before it.

        Returns:
            The 2-norm of the whole gradient before clipping.

        Raises:
            NonFiniteGradientError: a gradient is not finite. The weights are unchanged; gradients are dropped.
        """
        gradients = []
        for name, parameter in self.parameters.items():
            shard = self.shards[name]
            shard.grad = parameter.grad.detach().to_local()
            gradients.append(shard.grad)
            parameter.grad = None
        norm = clip_gradients(gradients, self.config.grad_clip_norm, copies=self.cells)
        if not norm < float("inf"):
            self.optimizer.zero_grad()
            raise NonFiniteGradientError(
                f"found a gradient of norm {norm} at optimizer step {self.steps}, expected a finite one; the weights are "
                "unchanged: lower lr or grad_clip_norm, or look at the batch's log-probabilities"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return norm

    def drop_gradients(self) -> None:
        """Drop the gradients that were not applied."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def layout(self) -> Layout:
        """Which rank holds which part of which parameter, in the dtype that is computed in; without communication."""
        dtype = str(self.dtype).removeprefix("torch.")
        mine = from_fsdp2(self.parameters, rank_name=lambda rank: f"rank{rank % self.ranks}").in_dtypes(lambda _: dtype)
        shards = {f"rank{rank}": mine.shards[f"rank{rank % self.ranks}"] for rank in range(self.cells * self.ranks)}
        return dataclasses.replace(mine, shards=shards)

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Unsharded float32 parameters under Hugging Face names, tied ones once. Every rank must run through them."""
        for name, parameter in self.parameters.items():
            yield name, self.shards[name] if self.ranks == 1 else parameter.detach().full_tensor()
