"""The policy sharded by FSDP2, with its optimizer on the local shards.

ranks = cells x ranks of a cell        (a mesh "replicate" x "shard")
forward, backward                      within a cell: gathers parameters, sums gradients over its shards
total_gradients                        over cells: adds up their sums, and scales once
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from tailrace.paramserver.layout import Layout, from_fsdp2
from tailrace.trainer.adapters import add_adapter, base_logprobs, published_name
from tailrace.trainer.config import SMALL_MODEL_PARAMETERS, TrainerConfig, check_owners
from tailrace.trainer.errors import TrainerConfigError
from tailrace.trainer.microbatch import MicroBatch
from tailrace.trainer.optimizer import MuonWithAdamW, adamw, clip_gradients
from tailrace.trainer.policy import PREFIX, Policy, load_policy
from tailrace.trainer.sharded_model import MOMENTS, SavedState, ShardedModel, parameter_dtype


class Fsdp2Model(ShardedModel):
    """Each rank holds its share of every parameter's first dimension.

    The optimizer works on plain tensors that are views of the shards. The arithmetic is the same as on distributed tensors,
    without their dispatch cost on every operation.

    Args:
        model_path: directory of a Hugging Face causal LM.
        config, device, rank, world_size: see `ShardedModel`.
    """

    def __init__(
        self, model_path: Path, config: TrainerConfig, device: torch.device, rank: int, world_size: int
    ) -> None:
        check_owners(config, "fsdp2")
        super().__init__(config, device, rank, world_size)
        policy = load_policy(model_path, parameter_dtype(config))
        policy.configure(config)
        if config.adapter.rank:
            policy.freeze(self.dtype)
            add_adapter(policy.lm, config.adapter, config.seed)
        self.vocabulary, self.shares_prompts = policy.vocabulary, policy.shares_prompts
        if config.cells == 1:
            self._mesh: Any = dist.device_mesh.init_device_mesh(device.type, (world_size,))
            self._replicas: Any = None
        else:
            shape = (self.cells, self.shares)
            mesh = dist.device_mesh.init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
            self._mesh, self._replicas = mesh["shard"], mesh.get_group("replicate")
        self.cell_group = self._mesh.get_group()
        self._whole = sum(parameter.numel() for parameter in policy.parameters()) <= SMALL_MODEL_PARAMETERS
        self.module: Any = self._shard(policy)
        for module in self.module.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                # Gradients are sums over tokens, scaled once at the end: ranks' are added, not averaged.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self.module.train()
        self.parameters: dict[str, DTensor] = {
            self._published(name): parameter
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad
        }
        with torch.no_grad():
            self.local: dict[str, Tensor] = {
                name: parameter.to_local().detach() for name, parameter in self.parameters.items()
            }
        self.reset_optimizer()

    def _published(self, parameter: str) -> str:
        """The name of a trained parameter outside: Hugging Face's, of an adapter PEFT's."""
        name = parameter.removeprefix(PREFIX)
        return published_name(name) if self.config.adapter.rank else name

    def _shard(self, policy: Policy, *, frees: bool | None = None) -> Any:
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

    # ---- gradients ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[Any]:
        """See `ShardedModel`. A small model's gradients are summed over the ranks of the cell after the last micro-batch."""
        if self._whole:
            self.module.set_requires_gradient_sync(last)
            self.module.set_reshard_after_backward(last)
        yield self.module

    def total_gradients(self, divisor: float) -> None:
        """See `ShardedModel`."""
        gradients = []
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad.to_local())
        if self._replicas is not None:
            for gradient in gradients:
                dist.all_reduce(gradient, group=self._replicas)
        torch._foreach_div_(gradients, divisor)

    def clip_gradients(self) -> float:
        """See `ShardedModel`."""
        gradients = []
        for name, parameter in self.parameters.items():
            shard = self.local[name]
            shard.grad = parameter.grad.detach().to_local()
            gradients.append(shard.grad)
            parameter.grad = None
        return clip_gradients(gradients, self.config.grad_clip_norm, copies=self.cells)

    def update(self, lr: float) -> None:
        """See `ShardedModel`."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def drop_gradients(self) -> None:
        """See `ShardedModel`."""
        for parameter in self.parameters.values():
            parameter.grad = None
        self.optimizer.zero_grad()

    def reset_optimizer(self) -> None:
        """See `ShardedModel`."""
        config = self.config
        self.optimizer: Any = adamw(
            self.local.values(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay
        )
        self.steps = 0

    def use_muon(self, lr_scale: float) -> None:
        """See `ShardedModel`."""
        if self.config.adapter.rank:
            raise TrainerConfigError("found Muon with an adapter, expected AdamW")
        if dist.get_world_size() > 1:
            raise TrainerConfigError("found Muon with several processes, expected one: it needs whole matrices")
        self.optimizer = MuonWithAdamW(
            self.local, betas=self.config.betas, weight_decay=self.config.weight_decay, muon_lr_scale=lr_scale
        )
        self.steps = 0

    def reference(self, model_path: Path) -> Callable[[MicroBatch, float], Tensor]:
        """See `ShardedModel`. With an adapter it is the base, which is there already."""
        if self.config.adapter.rank:
            return base_logprobs(self.module)
        model = load_policy(model_path, parameter_dtype(self.config))
        model.logits_budget = self.config.logits_budget
        model.requires_grad_(False).eval()
        module = self._shard(model, frees=True)

        def logprobs(batch: MicroBatch, temperature: float) -> Tensor:
            with torch.no_grad():
                found: Tensor = module(batch, temperature, False)[0]
            return found

        return logprobs

    # ---- weights --------------------------------------------------------------------------------------------------

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See `ShardedModel`."""
        return {name: tuple(parameter.shape) for name, parameter in self.parameters.items()}

    def whole_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """See `ShardedModel`."""
        for name, parameter in self.parameters.items():
            yield name, self.local[name] if self.shares == 1 else parameter.detach().full_tensor()

    def layout(self) -> Layout:
        """See `ShardedModel`."""
        dtype = str(self.dtype).removeprefix("torch.")
        mine = from_fsdp2(self.parameters, rank_name=lambda rank: f"rank{rank % self.shares}").in_dtypes(
            lambda _: dtype
        )
        shards = {f"rank{rank}": mine.shards[f"rank{rank % self.shares}"] for rank in range(self.cells * self.shares)}
        return dataclasses.replace(mine, shards=shards)

    def shards(self) -> Iterator[tuple[str, Tensor]]:
        """See `ShardedModel`."""
        for name, shard in self.local.items():
            yield name, shard.to(self.dtype)

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """See `ShardedModel`."""
        for name, shard in self.local.items() if self.cell == 0 else ():
            yield f"parameter/{name}", shard
            for moment in MOMENTS:
                if moment in self.optimizer.state.get(shard, {}):
                    yield f"{moment}/{name}", self.optimizer.state[shard][moment]

    def restore(self, saved: SavedState) -> None:
        """See `ShardedModel`."""
        self.reset_optimizer()
        for name, shard in self.local.items():
            rows = self.rows.of(self.parameters[name].shape[0])
            with torch.no_grad():
                shard.copy_(saved.rows("parameter", name, rows, shard))
            if saved.has_moments:
                self.optimizer.state[shard] = {
                    "step": torch.tensor(float(saved.steps), dtype=torch.float32, device=shard.device),
                    **{moment: saved.rows(moment, name, rows, shard) for moment in MOMENTS},
                }
        self.steps = saved.steps
