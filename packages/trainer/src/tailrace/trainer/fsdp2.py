"""The policy sharded by FSDP2, with its optimizer on the local shards.

ranks = cells x ranks of a cell        (a mesh "replicate" x "shard")
forward, backward                      within a cell: gathers parameters, sums gradients over its shards
total_gradients                        over cells: adds up their sums, and scales once
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from tailrace.paramserver.layout import Layout, from_fsdp2
from tailrace.trainer.adapters import add_adapter, base_logprobs, published_name
from tailrace.trainer.compiled import compile_layers, layers_of
from tailrace.trainer.config import SMALL_MODEL_PARAMETERS, TrainerConfig, check_owners
from tailrace.trainer.errors import TrainerConfigError
from tailrace.trainer.microbatch import MicroBatch
from tailrace.trainer.offload import HostParts
from tailrace.trainer.optimizer import MuonWithAdamW, adamw, clip_gradients
from tailrace.trainer.policy_model import PREFIX, Policy
from tailrace.trainer.sharded_load import Experts, ModelFiles, assign, sources
from tailrace.trainer.sharded_model import MOMENTS, SavedState, ShardedModel, parameter_dtype
from tailrace.trainer.value_model import fresh_head
from tailrace.trainer.weights_file import has_weights_file

logger = logging.getLogger(__name__)


class Fsdp2Model(ShardedModel):
    """Each rank holds its share of every parameter's first dimension.

    The optimizer works on plain tensors that are views of the shards. The arithmetic is the same as on distributed tensors,
    without their dispatch cost on every operation.

    Args:
        model_path, config, device, rank, world_size, values: see `ShardedModel`.
    """

    offloads = frozenset({"parameters", "gradients", "optimizer"})

    def __init__(
        self,
        model_path: Path,
        config: TrainerConfig,
        device: torch.device,
        rank: int,
        world_size: int,
        *,
        values: bool = False,
    ) -> None:
        check_owners(config, "fsdp2")
        super().__init__(model_path, config, device, rank, world_size, values=values)
        if config.cells == 1:
            self._mesh: Any = dist.device_mesh.init_device_mesh(device.type, (world_size,))
            self._replicas: Any = None
        else:
            shape = (self.cells, self.shares)
            mesh = dist.device_mesh.init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
            self._mesh, self._replicas = mesh["shard"], mesh.get_group("replicate")
        self.cell_group = self._mesh.get_group()
        self._host = HostParts(device)
        self.module: Any = self._open(model_path)
        self.vocabulary, self.shares_prompts = self.module.vocabulary, self.module.shares_prompts
        self.packs = self.module.packs
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

    def _open(self, path: Path, *, frozen: bool = False) -> Any:
        """The model in a directory, sharded; with its adapter, if it is not frozen. Collective.

        Of a large one each rank reads its own rows alone.
        """
        files = ModelFiles(path) if has_weights_file(path) else None
        if files is not None and files.elements > SMALL_MODEL_PARAMETERS:
            self._whole = False
            if (of := sources(self._empty(path).lm, files, self.fresh)) is not None:
                return self._open_by_rows(path, files, of, frozen=frozen)
            warn_of_whole_loads(path)
        policy = self._load_whole(path, parameter_dtype(self.config))
        self._whole = sum(parameter.numel() for parameter in policy.parameters()) <= SMALL_MODEL_PARAMETERS
        return self._shard(self._prepared(policy, frozen=frozen), frozen=frozen)

    def _prepared(self, policy: Policy, *, frozen: bool) -> Policy:
        """The policy with the configuration's settings and its adapter."""
        policy.configure(self.config)
        if frozen:
            policy.requires_grad_(False).eval()
        elif self.config.adapter.rank:
            policy.freeze(self.dtype)
            add_adapter(policy.lm, self.config.adapter, self.config.seed)
        return policy

    def _open_by_rows(self, path: Path, files: ModelFiles, of: Mapping[str, str | Experts], *, frozen: bool) -> Any:
        """The same without the model ever being whole: it is sharded before it has memory, and then given its rows.

        Shortcuts are looked for in the whole precision, so on a model of its own that has the same rows.
        """
        policy = self._empty(path).requires_grad_(False).eval()
        probed = self._shard(policy, frozen=True, precision=MixedPrecisionPolicy())
        tensors: dict[str, Tensor] = {}
        held = dict(probed.named_parameters()) | dict(probed.named_buffers())
        for name, source in of.items():
            read = functools.partial(files.read, source)
            tensors[PREFIX + name] = self._own_rows(held[PREFIX + name], read)
        for name in self.fresh:
            like = held[PREFIX + name]
            tensors[PREFIX + name] = self._own_rows(
                like, functools.partial(_copy_rows, fresh_head(like, self.config.seed))
            )
        policy = self._empty(path)
        if frozen:  # the same architecture as the model's
            found = [self.module.direct_head, self.module.shares_prompts, self.module.packs]
        else:
            assign(probed, tensors)
            probed.probe()
            probed.reshard()
            flags = [probed.direct_head, probed.shares_prompts, probed.packs]
            agreed = torch.tensor(flags, dtype=torch.int32, device=self.device)
            dist.all_reduce(agreed, dist.ReduceOp.MIN)
            found = [bool(flag) for flag in agreed.tolist()]
        policy.take(direct_head=found[0], shares_prompts=found[1], packs=found[2])
        module = self._shard(self._prepared(policy, frozen=frozen), frozen=frozen)
        assign(module, tensors)
        del probed, tensors
        gc.collect()  # FSDP2's hooks and modules refer to each other: float32 rows of a base would stay beside its own
        return module

    def _own_rows(self, like: Tensor, fill: Callable[[slice, Tensor], object]) -> Tensor:
        """This rank's part of a parameter, or a whole buffer.

        Args:
            like: what it is like, without memory.
            fill: copies rows of the whole into a tensor.
        """
        if not isinstance(like, DTensor):
            whole = torch.empty_like(like, device=self.device)
            fill(slice(None), whole)
            return whole
        rows = self.rows.of(like.shape[0])
        local = torch.empty((rows.stop - rows.start, *like.shape[1:]), dtype=like.dtype, device=self.device)
        fill(rows, local)
        about: Any = {"shape": like.shape, "stride": like.stride(), "run_check": False}
        sharded = DTensor.from_local(local, like.device_mesh, like.placements, **about)
        return nn.Parameter(sharded, requires_grad=False)

    def _shard(self, policy: Policy, *, frozen: bool = False, precision: MixedPrecisionPolicy | None = None) -> Any:
        """Shard a model over the ranks of each cell: layer by layer, a small one as a whole.

        Args:
            policy: the model.
            frozen: whether it is not trained; then each part is given back after its forward pass, the outermost too.
            precision: dtypes; None: those of the configuration.
        """
        dtype, wide = self.dtype, parameter_dtype(self.config)
        if precision is None:
            precision = (
                MixedPrecisionPolicy()
                if dtype is wide
                else MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=wide, cast_forward_inputs=False)
            )
        if not self._whole:
            for layer in layers_of(policy.lm):
                fully_shard(layer, mesh=self._mesh, mp_policy=precision)
        return fully_shard(policy, mesh=self._mesh, mp_policy=precision, reshard_after_forward=frozen or None)

    # ---- gradients ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[Any]:
        """See `ShardedModel`. A small model's gradients are summed over the ranks of the cell after the last micro-batch."""
        self._host.require("parameters", "gradients")
        if self._whole:
            self.module.set_requires_gradient_sync(last)
            self.module.set_reshard_after_backward(last)
        try:
            yield self.module
        except BaseException:  # FSDP2 would take the next pass for the rest of this one
            if self.module._get_fsdp_state()._is_root and hasattr(self.module, "reset_iter_state"):  # torch 2.13
                self.module.reset_iter_state()
            self.drop_gradients()
            raise
        if (
            not torch.is_grad_enabled()
        ):  # no backward pass gives the outermost part back; weights may change before it is used
            self.module.reshard()

    def total_gradients(self, divisor: float) -> None:
        """See `ShardedModel`."""
        self._host.require("gradients")
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
        self._host.require("parameters", "gradients", "optimizer")
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
        for module in self.module.modules():
            if isinstance(module, FSDPModule) and (unit := module._get_fsdp_state()._fsdp_param_group) is not None:
                for held in unit.fsdp_params:  # whole gradients, which wait for their micro-batches' last one
                    held.unsharded_accumulated_grad = None
                    if hasattr(held, "_unsharded_param"):
                        held._unsharded_param.grad = None
        for parameter in self.parameters.values():
            parameter.grad = None
        self.optimizer.zero_grad()
        self._host.forget("gradients")

    def reset_optimizer(self) -> None:
        """See `ShardedModel`."""
        config = self.config
        self.optimizer: Any = adamw(
            self.local.values(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay
        )
        self._host.forget("optimizer")
        self.steps = 0

    def offload(self, what: Collection[str]) -> int:
        """See `ShardedModel`."""
        return sum(self._host.offload(part, self._tensors(part)) for part in what)

    def onload(self, what: Collection[str]) -> int:
        """See `ShardedModel`."""
        return sum(self._host.onload(part) for part in what)

    def _tensors(self, part: str) -> list[Tensor]:
        match part:
            case "parameters":  # an adapter's frozen base, too
                return [each.to_local() for each in self.module.parameters()]
            case "gradients":
                return [each.grad.to_local() for each in self.parameters.values() if each.grad is not None]
            case "optimizer":
                states = self.optimizer.state.values()
                return [state[moment] for state in states for moment in MOMENTS if moment in state]
        raise TrainerConfigError(f"found the part {part!r}, expected parameters, gradients or optimizer")

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
        module = self._open(model_path, frozen=True)

        def logprobs(batch: MicroBatch, temperature: float) -> Tensor:
            with torch.no_grad():
                found: Tensor = module(batch, temperature, False)[0]
            return found

        return logprobs

    def compile_layers(self, *, on: bool) -> None:
        """See `ShardedModel`."""
        layers = list(layers_of(self.module.lm))
        if not layers:
            raise TrainerConfigError(
                f"found compile = {str(on).lower()} with {type(self.module.lm).__name__}, which does not name its layers; "
                "expected compile = false"
            )
        compile_layers(layers, on=on)

    # ---- weights --------------------------------------------------------------------------------------------------

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See `ShardedModel`."""
        return {name: tuple(parameter.shape) for name, parameter in self.parameters.items()}

    def whole_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """See `ShardedModel`."""
        self._host.require("parameters")
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
        self._host.require("parameters")
        for name, shard in self.local.items():
            yield name, shard.to(self.dtype)

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    def state(self, *, moments: bool = True) -> Iterator[tuple[str, Tensor]]:
        """See `ShardedModel`."""
        self._host.require("parameters", *(["optimizer"] if moments else []))
        for name, shard in self.local.items() if self.cell == 0 else ():
            yield f"parameter/{name}", shard
            for moment in MOMENTS if moments else ():
                if moment in self.optimizer.state.get(shard, {}):
                    yield f"{moment}/{name}", self.optimizer.state[shard][moment]

    def restore(self, saved: SavedState) -> None:
        """See `ShardedModel`."""
        self._host.require("parameters")
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


def warn_of_whole_loads(path: Path) -> None:
    """Say that each rank loads a large model whole."""
    logger.warning("each rank loads all of %s: its files have other tensors than the model has parameters", path)


def _copy_rows(whole: Tensor, rows: slice, out: Tensor) -> None:
    out.copy_(whole[rows])
