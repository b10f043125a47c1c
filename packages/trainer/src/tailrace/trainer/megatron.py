"""The policy by Megatron-core, tensor-parallel within groups of neighbouring ranks and replicated over these.

rank = (cell, place, slot)             slot: which part of every layer, of `tensor_parallel`
forward, backward                      within the ranks of one place: Megatron adds activations and their gradients up
total_gradients                        over the places of all cells: adds up their sums, and scales once
update                                 each place steps the tensors whose moments it has, and sends them to its cell's others

The optimizer is torch's AdamW on the local parameters, on CUDA too: Megatron's own needs CUDA to be built, and Transformer
Engine or Apex to be another one than torch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tailrace.paramserver.layout import Layout
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.megatron_gpt import TensorParallelPolicy, TensorParallelValues
from tailrace.trainer.megatron_weights import Gatherer, gpt_layout, load_shard, put_rows
from tailrace.trainer.microbatch import MicroBatch
from tailrace.trainer.optimizer import adamw, clip_gradients
from tailrace.trainer.sharded_model import MOMENTS, Rows, SavedState, ShardedModel, least_loaded, parameter_dtype
from tailrace.trainer.value_model import fresh_head
from tailrace.trainer.weights_file import read_config


class MegatronModel(ShardedModel):
    """Each rank holds its part of every layer; those of one slot hold the same, but each has AdamW's moments of some tensors.

    Args:
        model_path: directory of a dense Qwen2 or Qwen3, whose safetensors are read tensor by tensor.
        config, device, rank, world_size, values: see `ShardedModel`. A critic's head is on every rank.
    """

    shares_prompts = True

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
        super().__init__(model_path, config, device, rank, world_size, values=values)
        config = self.config
        self.packs = config.packing
        self._hf = read_config(model_path)
        tp, per_cell = config.tensor_parallel, world_size // config.cells
        self.shares, within = per_cell // tp, rank % per_cell
        self.place, slot = divmod(within, tp)
        self.rows = Rows(within, per_cell)

        def group(of: Callable[[int], int]) -> Any:
            """This rank's group of those with an equal number. Collective."""
            timeout, mine = timedelta(seconds=config.timeout_s), None
            for number in range(max(map(of, range(world_size))) + 1):
                ranks = [other for other in range(world_size) if of(other) == number]
                made = dist.new_group(ranks, timeout=timeout)
                mine = made if rank in ranks else mine
            return mine

        self._tp_group, self._alone = group(lambda other: other // tp), group(lambda other: other)
        self.group = group(lambda other: other % tp)
        self.cell_group = group(lambda other: other // per_cell * tp + other % tp)
        dtype = str(parameter_dtype(config)).removeprefix("torch.")
        self._rank = f"rank{rank}"
        self._layout = gpt_layout(self._hf, tp, world_size, dtype, values=values)
        group_of = [f"rank{rank - slot + other}" for other in range(tp)]
        self._like = torch.empty(0, dtype=parameter_dtype(config), device=device)
        self._gatherer = Gatherer(self._layout, group_of, self._tp_group, self._like)
        self.policy = self._load(model_path)
        self.vocabulary = self.policy.vocabulary
        self._parameters: dict[str, Any] = dict(self.policy.gpt.named_parameters())
        self.local: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            self.local[name] = parameter.detach().to(parameter_dtype(config))
            parameter.register_post_accumulate_grad_hook(self._adds_to(self.local[name]))
        if self.dtype is not parameter_dtype(config):  # the float32 values, which the parameters rounded
            self._fill(self.local, model_path)
        self._owners = least_loaded({name: shard.numel() for name, shard in self.local.items()}, self.shares)
        # Every rank normalises the queries and keys of its own heads with the same weights.
        self._partial = [name for name in self.local if ".q_layernorm." in name or ".k_layernorm." in name]
        held = [{buffer.name: buffer for buffer in self._layout.shards[other].buffers} for other in group_of]
        alike = [all(each[name] == held[slot][name] for each in held) for name in self.local]
        copies = [world_size if one else world_size // tp for one in alike]
        self._copies = torch.tensor(copies, dtype=torch.float64, device=device)
        self.reset_optimizer()

    def _load(self, model_path: Path) -> TensorParallelPolicy:
        kind = TensorParallelValues if self.values else TensorParallelPolicy
        policy = kind(self._hf, self.config, self._tp_group, self._alone)
        local = {name: parameter.detach() for name, parameter in policy.gpt.named_parameters()}
        for tensor in local.values():
            tensor.zero_()  # padding of the vocabulary
        self._fill(local, model_path)
        policy.to(self.device).train()
        return policy

    def _fill(self, local: Mapping[str, Tensor], model_path: Path) -> None:
        """Fill this rank's tensors from a model directory."""
        load_shard(model_path, self._layout, self._rank, local, fresh=self.fresh)
        for name in self.fresh:
            local[name].copy_(fresh_head(local[name], self.config.seed))

    @staticmethod
    def _adds_to(shard: Tensor) -> Callable[[Tensor], None]:
        """Moves a parameter's gradient into its shard's."""

        def add(parameter: Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            if gradient is None:
                return
            if shard.grad is None:
                shard.grad = gradient.to(shard.dtype)
            else:
                shard.grad += gradient

        return add

    # ---- gradients ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[Any]:  # noqa: ARG002 - nothing waits for the last one
        """See `ShardedModel`."""
        yield self.policy

    def total_gradients(self, divisor: float) -> None:
        """See `ShardedModel`."""
        for shard in self.local.values():
            if shard.grad is None:
                shard.grad = torch.zeros_like(shard)
        if self.config.tensor_parallel > 1:
            for name in self._partial:
                dist.all_reduce(self.local[name].grad, group=self._tp_group)
        gradients: list[Any] = [shard.grad for shard in self.local.values()]
        if self.cells * self.shares > 1:
            for gradient in gradients:
                dist.all_reduce(gradient, group=self.group)
        torch._foreach_div_(gradients, divisor)

    def clip_gradients(self) -> float:
        """See `ShardedModel`."""
        gradients: list[Any] = [shard.grad for shard in self.local.values()]
        return clip_gradients(gradients, self.config.grad_clip_norm, copies=self._copies)

    def update(self, lr: float) -> None:
        """See `ShardedModel`."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self._has_moments = True
        if self.shares > 1:
            for name, shard in self.local.items():
                dist.broadcast(shard, group=self.cell_group, group_src=self._owners[name])
        self.drop_gradients()
        self._round()

    def _round(self) -> None:
        """Bring the weights to the parameters that are computed with, where these have another dtype."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                if parameter.dtype is not self.local[name].dtype:
                    parameter.copy_(self.local[name])

    def drop_gradients(self) -> None:
        """See `ShardedModel`."""
        for tensor in (*self.local.values(), *self._parameters.values()):
            tensor.grad = None

    def reset_optimizer(self) -> None:
        """See `ShardedModel`."""
        config = self.config
        mine = [shard for name, shard in self.local.items() if self._owners[name] == self.place]
        self.optimizer: Any = adamw(
            mine or [self._like], lr=config.lr, betas=config.betas, weight_decay=config.weight_decay
        )
        self._has_moments = False
        self.steps = 0

    def reference(self, model_path: Path) -> Callable[[MicroBatch, float], Tensor]:
        """See `ShardedModel`."""
        policy = self._load(model_path).requires_grad_(False).eval()

        def logprobs(batch: MicroBatch, temperature: float) -> Tensor:
            with torch.no_grad():
                found: Tensor = policy(batch, temperature, False)[0]
            return found

        return logprobs

    # ---- weights --------------------------------------------------------------------------------------------------

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See `ShardedModel`."""
        return {tensor.name: tensor.shape for tensor in self._layout.tensors}

    def whole_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """See `ShardedModel`."""
        for name in self.shapes:
            yield name, self._gatherer.whole(name, self.local)

    def layout(self) -> Layout:
        """See `ShardedModel`."""
        dtype = str(self.dtype).removeprefix("torch.")
        return self._layout.in_dtypes(lambda _: dtype)

    def shards(self) -> Iterator[tuple[str, Tensor]]:
        """See `ShardedModel`."""
        for name, shard in self.local.items():
            yield name, shard.to(self.dtype)

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    def state(self, *, moments: bool = True) -> Iterator[tuple[str, Tensor]]:
        """See `ShardedModel`."""
        if self.cell:
            return
        kinds: dict[str, Mapping[str, Tensor]] = {"parameter": self.local}
        if moments and self._has_moments:
            kinds |= {kind: _Moments(self, kind) for kind in MOMENTS}
        for name, shape in self.shapes.items():
            for kind, local in kinds.items():
                yield f"{kind}/{name}", self._gatherer.whole(name, local)[self.rows.of(shape[0])]

    def restore(self, saved: SavedState) -> None:
        """See `ShardedModel`."""
        self.reset_optimizer()
        kinds: dict[str, dict[str, Tensor]] = {"parameter": self.local}
        if saved.has_moments:
            owned = {name: shard for name, shard in self.local.items() if self._owners[name] == self.place}
            for shard in owned.values():
                step = torch.tensor(float(saved.steps), dtype=torch.float32, device=shard.device)
                self.optimizer.state[shard] = {"step": step, **{kind: torch.zeros_like(shard) for kind in MOMENTS}}
            for kind in MOMENTS:
                kinds[kind] = {name: self.optimizer.state[shard][kind] for name, shard in owned.items()}
            self._has_moments = True
        mine = self._layout.shards[self._rank]
        for name, shape in self.shapes.items():
            for kind, local in kinds.items():

                def read(rows: slice, kind: str = kind, name: str = name, shape: tuple[int, ...] = shape) -> Tensor:
                    like = torch.empty(
                        rows.stop - rows.start, *shape[1:], dtype=parameter_dtype(self.config), device=self.device
                    )
                    return saved.rows(kind, name, rows, like)

                put_rows(mine, name, local, read)
        self._round()
        self.steps = saved.steps


class _Moments(Mapping[str, Tensor]):
    """A moment of every local tensor, sent by the rank of the cell that has it as it is asked for. Collective.

    Args:
        model: the model.
        kind: one of `MOMENTS`.
    """

    def __init__(self, model: MegatronModel, kind: str) -> None:
        self._model, self._kind = model, kind
        self._last: tuple[str, Tensor] | None = None  # one local tensor is several outside, one after another

    def __getitem__(self, name: str) -> Tensor:
        if self._last is None or self._last[0] != name:
            model, shard = self._model, self._model.local[name]
            owner = model._owners[name]
            found = model.optimizer.state[shard][self._kind] if owner == model.place else torch.empty_like(shard)
            if model.shares > 1:
                dist.broadcast(found, group=model.cell_group, group_src=owner)
            self._last = name, found
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._model.local)

    def __len__(self) -> int:
        return len(self._model.local)
