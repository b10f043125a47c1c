"""The policy under DeepSpeed's ZeRO, which leaves each rank a part of what it holds.

stage 1    AdamW's moments in parts; gradients are added up over ranks once, in `total_gradients`
stage 2    gradients too: those of each micro-batch are added up over ranks, and each rank keeps its part
stage 3    parameters too: each module's are gathered for its passes

DeepSpeed's own step adds up, measures, clips and updates in one call. Here these are apart, as for any backend: what the sum
is divided by is known only at the end of a batch, which may have had its micro-batches long before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tailrace.contracts import extra
from tailrace.paramserver.layout import GlobalTensor, Layout, LocalBuffer, Piece, Shard
from tailrace.trainer.adapters import add_adapter, base_logprobs, published_name
from tailrace.trainer.config import SMALL_MODEL_PARAMETERS, AdapterConfig, TrainerConfig
from tailrace.trainer.fsdp2 import Fsdp2Model, warn_of_whole_loads
from tailrace.trainer.memory import ZERO_BUCKET, ZERO_LIVE
from tailrace.trainer.microbatch import MicroBatch
from tailrace.trainer.optimizer import adamw, clip_gradients
from tailrace.trainer.policy_model import PREFIX, Policy
from tailrace.trainer.sharded_load import Experts, ModelFiles, assign, sources
from tailrace.trainer.sharded_model import MOMENTS, Rows, SavedState, ShardedModel, parameter_dtype
from tailrace.trainer.value_model import fresh_head
from tailrace.trainer.weights_file import has_weights_file


class DeepSpeedModel(ShardedModel):
    """ZeRO over all ranks, with torch's AdamW on each rank's flat part of the parameters.

    Args:
        model_path, config, device, rank, world_size, values: see `ShardedModel`.

    Raises:
        MissingExtraError: DeepSpeed is not installed.
    """

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
        self._rank, self._ranks = rank, world_size
        self.stage = config.zero_stage or 2
        files, of = self._rows_of(model_path)
        by_rows = bool(of)
        policy = (
            self._empty_with_shortcuts(model_path) if by_rows else self._load_whole(model_path, parameter_dtype(config))
        )
        policy.configure(config)
        if config.adapter.rank:
            policy.freeze(self.dtype)
            add_adapter(policy.lm, config.adapter, config.seed)
        policy.train()
        self.vocabulary, self.shares_prompts, self.packs = policy.vocabulary, policy.shares_prompts, policy.packs
        self.parameters = self._trained(policy)
        self._shapes = {name: tuple(parameter.shape) for name, parameter in self.parameters.items()}
        narrow = self.dtype is not parameter_dtype(config)
        masters = {name: p.detach().clone() for name, p in self.parameters.items() if not p.is_meta} if narrow else {}
        if files is not None:
            if self.stage == 3:
                _partition(policy, self.dtype, device)
            else:
                self._read_whole(policy, files, of)
            self.parameters = self._trained(policy)
        optimizer = adamw(self.parameters.values(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
        self._engine: Any = _initialized(policy, optimizer, self.stage, self.dtype, device)
        self._zero: Any = self._engine.optimizer
        self.parameters = self._trained(self._engine.module)
        with torch.no_grad():
            for name in masters:  # ZeRO's own are of the narrow weights
                self._write(name, None, masters[name])
            if files is not None:
                self._read_parts(files, of)
        if masters or by_rows:
            self._show_masters()
        self.reset_optimizer()

    def _rows_of(self, path: Path) -> tuple[ModelFiles | None, Mapping[str, str | Experts]]:
        """The files of a large model, and where each tensor is in them: no rank loads it whole. Nothing of a small one."""
        files = ModelFiles(path) if has_weights_file(path) else None
        if files is None or files.elements <= SMALL_MODEL_PARAMETERS:
            return None, {}
        of = sources(self._empty(path).lm, files, self.fresh)
        if of is None:
            warn_of_whole_loads(path)
            return None, {}
        return files, of

    def _empty_with_shortcuts(self, path: Path) -> Policy:
        """The same with the shortcuts that it allows: the model by FSDP2, of which each rank reads its rows, tells them."""
        changes: dict[str, Any] = {"zero_stage": None, "adapter": AdapterConfig(), "dtype": "float32"}
        config = dataclasses.replace(self.config, **changes)
        told = Fsdp2Model(path, config, self.device, self._rank, self._ranks, values=self.values).module
        policy = self._empty(path)
        policy.take(direct_head=told.direct_head, shares_prompts=told.shares_prompts, packs=told.packs)
        del told
        gc.collect()  # hooks and modules of FSDP2 refer to each other: this rank's rows would stay beside DeepSpeed's
        return policy

    def _read_whole(self, policy: Policy, files: ModelFiles, of: Mapping[str, str | Experts]) -> None:
        """Give a model without memory all of its parameters, in the dtype of the passes, one after the other on the device."""
        shapes = {name.replace(".base_layer.", "."): parameter.shape for name, parameter in policy.named_parameters()}
        buffers, tensors = dict(policy.named_buffers()), dict[str, Tensor]()
        for parameter in policy.parameters():
            if parameter.is_meta:  # others are an adapter's
                parameter.data = parameter.data.to(self.dtype)
        for name, source in of.items():
            if (buffer := buffers.get(PREFIX + name)) is not None:
                files.read(source, slice(None), buffer)
                continue
            whole = torch.empty(shapes[PREFIX + name], dtype=self.dtype, device=self.device)
            files.read(source, slice(None), whole)
            tensors[PREFIX + name] = torch.nn.Parameter(whole, requires_grad=False)
        for name in self.fresh:
            head = fresh_head(torch.empty(shapes[PREFIX + name], dtype=self.dtype), self.config.seed)
            tensors[PREFIX + name] = torch.nn.Parameter(head.to(self.device), requires_grad=False)
        assign(policy, tensors)

    def _read_parts(self, files: ModelFiles, of: Mapping[str, str | Experts]) -> None:
        """Read this rank's part of each parameter, and the persistent buffers."""
        for name, parameter in self._engine.module.named_parameters():
            source = of.get(plain := name.removeprefix(PREFIX).replace(".base_layer.", "."))
            if source is None and plain not in self.fresh:
                continue  # an adapter's
            part, first, last = self._held(parameter)
            if first == last:
                continue
            shape = tuple(parameter.ds_shape if self.stage == 3 else parameter.shape)
            row = math.prod(shape[1:])
            rows = slice(first // row, -(-last // row))
            held = torch.empty((rows.stop - rows.start, *shape[1:]), dtype=part.dtype, device=part.device)
            if source is None:
                held.copy_(fresh_head(held.new_empty(shape), self.config.seed)[rows])
            else:
                files.read(source, rows, held)
            part[: last - first].copy_(held.flatten()[first - rows.start * row :][: last - first])
        for name, buffer in self._engine.module.named_buffers():
            if (source := of.get(name.removeprefix(PREFIX))) is not None:
                files.read(source, slice(None), buffer)

    def _held(self, parameter: Any) -> tuple[Tensor, int, int]:
        """The part of a parameter that this rank alone holds, and where it begins and ends in the flattened parameter.

        Of what is trained it is the float32 part, of an adapter's base what is computed with.
        """
        if self.stage == 3:
            part = self._zero.get_local_fp32_param(parameter) if parameter.requires_grad else parameter.ds_tensor
            first, last = (min(len(part) * place, parameter.ds_numel) for place in (self._rank, self._rank + 1))
            return part, first, last
        held = getattr(parameter, "_hp_mapping", None)
        if held is None:
            return parameter, 0, 0
        at = held.lp_fragment_address
        return held.get_hp_fragment(), at.start, at.start + at.numel

    def _trained(self, policy: Any) -> dict[str, Any]:
        """The parameters that are trained, by their names outside: Hugging Face's, of an adapter PEFT's."""
        trained = {name.removeprefix(PREFIX): p for name, p in policy.named_parameters() if p.requires_grad}
        if not self.config.adapter.rank:
            return trained
        return {published_name(name): parameter for name, parameter in trained.items()}

    def close(self) -> None:
        """See `ShardedModel`: hooks on parameters hold DeepSpeed's engine."""
        self._engine.destroy()

    # ---- gradients ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[Any]:
        """See `ShardedModel`."""
        del last  # a batch may end without one
        yield self._engine

    def backward(self, loss: Tensor) -> None:
        """See `ShardedModel`. From stage 2 on, gradients are added up over the ranks too."""
        self._engine.backward(loss)

    def total_gradients(self, divisor: float) -> None:
        """See `ShardedModel`."""
        if self.stage == 1:
            self._zero.set_gradient_accumulation_boundary(True)
            self._zero.reduce_gradients()
        else:
            self._zero.finalize_gradient_accumulation_boundary()
        # ZeRO averages over ranks, and a loss is a sum over tokens.
        torch._foreach_mul_(self._gradients(), self._ranks / divisor)

    def clip_gradients(self) -> float:
        """See `ShardedModel`."""
        return clip_gradients(self._gradients(), self.config.grad_clip_norm, copies=1)

    def update(self, lr: float) -> None:
        """See `ShardedModel`."""
        self._zero.set_lr(lr)
        self._zero.step()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """See `ShardedModel`."""
        self._zero.zero_grad()
        self._zero.averaged_gradients.clear()
        if self.stage < 3:
            self._zero.all_grad_tensors.clear()

    def _gradients(self) -> list[Tensor]:
        """This rank's part of the summed gradients."""
        return [part for parts in self._zero.averaged_gradients.values() for part in parts]

    def reset_optimizer(self) -> None:
        """See `ShardedModel`."""
        self._zero.optimizer.state.clear()
        self._zero._hp_optimizer_states_linked = False
        self.steps = 0

    def reference(self, model_path: Path) -> Callable[[MicroBatch, float], Tensor]:
        """See `ShardedModel`. Every rank keeps a whole copy; with an adapter it is the base, which is there already."""
        if self.config.adapter.rank:
            return base_logprobs(self._engine.module)
        files, of = self._rows_of(model_path)
        if files is None:
            model = self._load_whole(model_path, self.dtype).to(self.device)
        else:
            model, policy = self._empty(model_path), self._engine.module
            model.take(direct_head=policy.direct_head, shares_prompts=policy.shares_prompts, packs=policy.packs)
            self._read_whole(model, files, of)
            model = model.to(self.device)  # its buffers
        model.logits_budget = self.config.logits_budget
        model.requires_grad_(False).eval()

        def logprobs(batch: MicroBatch, temperature: float) -> Tensor:
            with torch.no_grad():
                found: Tensor = model(batch, temperature, False)[0]
            return found

        return logprobs

    # ---- weights --------------------------------------------------------------------------------------------------

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See `ShardedModel`."""
        return self._shapes

    def whole_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """See `ShardedModel`."""
        for name in self.parameters:
            yield name, self._whole(name)

    def layout(self) -> Layout:
        """See `ShardedModel`. Rows as FSDP2 has them: ZeRO's own parts begin and end within rows."""
        dtype = str(self.dtype).removeprefix("torch.")
        tensors = tuple(GlobalTensor(name, dtype, shape) for name, shape in self._shapes.items())
        shards = {
            f"rank{rank}": Shard(tuple(_rows(tensor, Rows(rank, self._ranks)) for tensor in tensors))
            for rank in range(self._ranks)
        }
        return Layout(tensors, shards)

    def shards(self) -> Iterator[tuple[str, Tensor]]:
        """See `ShardedModel`."""
        for name, parameter in self.parameters.items():
            whole = parameter.detach() if self.stage < 3 else self._whole(name)
            yield name, whole[self.rows.of(len(whole))].to(self.dtype)

    def _whole(self, name: str, moment: str | None = None) -> Tensor:
        """A whole parameter or moment in float32. Collective, but for parameters that every rank has."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        parameter = self.parameters[name]
        if moment is None and self.stage < 3 and parameter.dtype is torch.float32:
            return parameter.detach()
        found: Tensor = (
            safe_get_full_fp32_param(parameter) if moment is None else safe_get_full_optimizer_state(parameter, moment)
        )
        return found

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    def state(self, *, moments: bool = True) -> Iterator[tuple[str, Tensor]]:
        """See `ShardedModel`."""
        kinds = MOMENTS if moments and self._zero.optimizer.state else ()
        for name, shape in self._shapes.items():
            rows = self.rows.of(shape[0])
            yield f"parameter/{name}", self._whole(name)[rows]
            for moment in kinds:
                yield f"{moment}/{name}", self._whole(name, moment)[rows]

    def restore(self, saved: SavedState) -> None:
        """See `ShardedModel`."""
        self.reset_optimizer()
        self.drop_gradients()
        if saved.has_moments:
            self._make_moments(saved.steps)
        with torch.no_grad():
            for name, shape in self._shapes.items():
                like = torch.empty(shape, dtype=parameter_dtype(self.config), device=self.device)
                for kind in (None, *MOMENTS) if saved.has_moments else (None,):
                    self._write(name, kind, saved.rows(kind or "parameter", name, slice(None), like))
        self._show_masters()
        self.steps = saved.steps

    def _make_moments(self, steps: int) -> None:
        """Give AdamW the state that its first step would make."""
        flat = (
            self._zero.fp32_partitioned_groups_flat if self.stage == 3 else self._zero.single_partition_of_fp32_groups
        )
        for part in flat:
            step = torch.tensor(float(steps), dtype=torch.float32, device=part.device)
            self._zero.optimizer.state[part] = {"step": step, **{kind: torch.zeros_like(part) for kind in MOMENTS}}
        if self.stage < 3:
            self._zero._lazy_init_hp_params_optimizer_state()

    def _write(self, name: str, moment: str | None, whole: Tensor) -> None:
        """Copy what this rank holds of a whole parameter or moment into ZeRO's float32 part."""
        parameter = self.parameters[name]
        if self.stage == 3:
            part = self._zero.get_local_fp32_param(parameter, moment)
            start = min(len(part) * self._rank, whole.numel())
            mine = whole.flatten()[start : start + len(part)]
            part[: len(mine)].copy_(mine)
        elif (held := parameter._hp_mapping) is not None:
            at = held.lp_fragment_address
            held.get_hp_fragment(moment).copy_(whole.flatten()[at.start : at.start + at.numel])

    def _show_masters(self) -> None:
        """Have the forward pass see what was written into ZeRO's float32 parts. Collective."""
        zero = self._zero
        if self.stage < 3:
            zero.update_lp_params()
            return
        zero._partition_all_parameters()
        for group in range(len(zero.fp16_groups)):
            zero._reassign_or_swap_out_partitioned_parameters(group)
        zero._post_step(set())


def _rows(tensor: GlobalTensor, rows: Rows) -> LocalBuffer:
    """The buffer that has some rows of a tensor, perhaps none."""
    held = rows.of(tensor.shape[0])
    box = ((held.start, held.stop), *((0, size) for size in tensor.shape[1:]))
    pieces = (Piece(tensor.name, box, (0,) * len(box)),) if held.start < held.stop else ()
    return LocalBuffer(tensor.name, tensor.dtype, (held.stop - held.start, *tensor.shape[1:]), pieces)


def import_deepspeed(device: str = "") -> Any:
    """DeepSpeed, which compiles nothing and prints nothing on stdout.

    Args:
        device: type of the device; by default CUDA if available.
    """
    os.environ.setdefault("DS_ACCELERATOR", device or ("cuda" if torch.cuda.is_available() else "cpu"))
    # Its logger writes to what is stdout while it is imported.
    with extra("tailrace-trainer", "deepspeed"), contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed
        import deepspeed.runtime.zero.muon.muon_optimizer  # at its first use otherwise: seconds
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)  # it calls those
    # On CPUs it would compile an all-reduce over shared memory for a minute, whose segments two runs of one user share.
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def _partition(policy: Policy, dtype: torch.dtype, device: torch.device) -> None:
    """Give a model without memory the parameters of ZeRO 3: each rank has room for its part, and no rank for the whole."""
    deepspeed = _ready(device)
    zero = deepspeed.zero.Init(module=torch.nn.Module(), config_dict_or_path=_settings(3, dtype), dtype=dtype)
    made: dict[Any, Any] = {}  # tied ones once
    for module in policy.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if not parameter.is_meta:  # an adapter's, which DeepSpeed partitions
                parameter.data = parameter.data.to(dtype)
                continue
            if parameter not in made:
                whole = torch.empty(parameter.shape, dtype=dtype, device=device)
                made[parameter] = torch.nn.Parameter(whole, requires_grad=parameter.requires_grad)
                zero._convert_to_deepspeed_param(made[parameter])
                made[parameter].partition()
            module._parameters[name] = made[parameter]


def _ready(device: torch.device) -> Any:
    """DeepSpeed, which knows the device and the process group that this process is in."""
    deepspeed = import_deepspeed(device.type)
    from deepspeed.accelerator import get_accelerator, set_accelerator
    from deepspeed.comm import comm
    from deepspeed.utils import groups

    if get_accelerator().device_name() != device.type == "cpu":
        from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

        set_accelerator(CPU_Accelerator())
    os.environ["LOCAL_RANK"] = str(device.index or 0)  # which its launcher would set
    comm.cdb = None  # of a process group that this process has left
    groups._release_process_group_references(group=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        deepspeed.init_distributed(dist_init_required=False)
    return deepspeed


def _initialized(policy: Any, optimizer: Any, stage: int, dtype: torch.dtype, device: torch.device) -> Any:
    """DeepSpeed's engine over all ranks of the process group that this process is in."""
    deepspeed = _ready(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = deepspeed.initialize(
            model=policy, optimizer=optimizer, config=_settings(stage, dtype), dist_init_required=False
        )
    return found[0]


def _settings(stage: int, dtype: torch.dtype) -> dict[str, Any]:
    """DeepSpeed's configuration. What is left to `DeepSpeedModel` is off: clipping, norms, micro-batches, schedules."""
    zero = {
        "stage": stage,
        "contiguous_gradients": False,
        "overlap_comm": False,
        "reduce_bucket_size": ZERO_BUCKET,
        "stage3_max_live_parameters": ZERO_LIVE,
        "compute_grad_norm": stage == 3,  # which cannot do without
    }
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": dtype is torch.bfloat16},
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
    }
