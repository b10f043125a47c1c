"""The model over the ranks of a backend: what FSDP2, DeepSpeed and Megatron-core each do in their own way.

`TrainerWorker` does the same with any of them: losses, advantages, packing, metrics and checkpoints belong to none.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from tailrace.paramserver.layout import Layout
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.critic_init import HEAD, check_critic_init
from tailrace.trainer.errors import NonFiniteGradientError, TrainerConfigError
from tailrace.trainer.microbatch import MicroBatch
from tailrace.trainer.policy_model import Policy, load_policy
from tailrace.trainer.sharded_load import empty_lm
from tailrace.trainer.value_model import ValueModel, empty_value_lm, load_value_model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's moments, as torch and a checkpoint call them."""


def parameter_dtype(config: TrainerConfig) -> torch.dtype:
    """The dtype of parameters, gradient sums and optimizer state."""
    return torch.promote_types(DTYPES[config.dtype], torch.float32)


class Rows(NamedTuple):
    """Which rows of each tensor a rank's part of a checkpoint has: part `place` of `ranks`, as ``torch.chunk`` splits them."""

    place: int
    ranks: int

    def of(self, count: int) -> slice:
        """This rank's rows of a tensor with so many."""
        size = -(-count // self.ranks)
        return slice(min(self.place * size, count), min((self.place + 1) * size, count))


def least_loaded(sizes: Mapping[str, int], places: int) -> dict[str, int]:
    """A place for each tensor: the largest first, each at the place that has the fewest elements so far.

    Args:
        sizes: elements of each tensor, by name; the same on every rank.
        places: how many there are.
    """
    held, found = [0] * places, dict[str, int]()
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        found[name] = held.index(min(held))
        held[found[name]] += sizes[name]
    return found


class SavedState(Protocol):
    """What a checkpoint has, whichever backend wrote it."""

    steps: int
    has_moments: bool

    def rows(self, kind: str, name: str, rows: slice, like: Tensor) -> Tensor:
        """Rows of a tensor, in the dtype and on the device of `like`.

        Args:
            kind: ``"parameter"``, or one of `MOMENTS`.
            name: the parameter's Hugging Face name.
            rows: which; a slice without bounds means all.
            like: a tensor.

        Raises:
            CheckpointError: it is of another shape.
        """
        ...


class ShardedModel(ABC):
    """One rank's part of parameters, gradients and AdamW state.

    Ranks are in cells of equal size that follow each other. Those of a cell that have the same `place` compute one share of
    each batch together; there are `shares` of them in a cell. Methods marked *collective* are called on every rank, those of
    `micro_batch` on every rank of a cell.

    Args:
        model_path: directory of a Hugging Face causal LM. With `values` it may have a value head in place of an output layer.
        config: the settings.
        device: this rank's device.
        rank: this process.
        world_size: number of processes. They have joined their process group.
        values: whether it is the critic, which gives values in place of log-probabilities, with settings of its own.

    Attributes:
        fresh: parameters that are in no file of the directory: the head that a critic begins with, if it began as the policy.
        dtype: dtype of the forward pass.
        cell, place: this rank's cell, and which share of a cell's work it computes; both from 0.
        cells, shares: how many there are.
        cell_group, group: process groups over which sums of this cell, and of all, are added up: one rank for each share.
        steps: optimizer steps since the start or since `reset_optimizer`.
        vocabulary: token ids that the model knows.
        shares_prompts: whether responses may share their prompt's row.
        packs: whether micro-batches are packed rows without padding.
        offloads: the parts that `offload` moves.
    """

    offloads: frozenset[str] = frozenset()
    shares_prompts = False
    packs = False
    vocabulary: int
    cell_group: Any = None
    group: Any = None

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
        config = config.of_critic if values else config
        self.model_path, self.config, self.device, self.dtype = model_path, config, device, DTYPES[config.dtype]
        self.values = values
        self.fresh = (HEAD,) if values and config.critic.init is None else ()
        self.cells, self.shares = config.cells, world_size // config.cells
        self.cell, self.place = divmod(rank, self.shares)
        self.rows = Rows(self.place, self.shares)
        self.steps = 0

    def counts_all(self, *, alone: bool) -> bool:
        """Whether this rank counts what all ranks of its cell, or of all cells, are given alike: of each `group`, one does."""
        return self.place == 0 and (alone or self.cell == 0)

    def close(self) -> None:  # noqa: B027 - most need nothing
        """Let go of what would keep the model in memory. It is not used afterwards."""

    # ---- gradients ------------------------------------------------------------------------------------------------

    @abstractmethod
    def micro_batch(self, *, last: bool) -> contextlib.AbstractContextManager[Callable[..., tuple[Tensor, Tensor]]]:
        """Run a forward pass and `backward` in this context, which adds to the gradients. Collective in the cell.

        The context gives a function of (micro-batch, temperature, whether entropies are wanted), which returns what
        `tailrace.trainer.policy_model.Policy.forward` does.

        Args:
            last: whether it is the last of the call: sums over the ranks of a cell may wait for it.
        """

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a micro-batch's loss, a sum over its tokens."""
        loss.backward()

    @abstractmethod
    def total_gradients(self, divisor: float) -> None:
        """Add the gradients of all cells up, and divide them. Collective. A cell may have none."""

    def apply_gradients(self, lr: float) -> float:
        """Clip the gradients, do an optimizer step and drop them. `total_gradients` comes before it. Collective.

        Returns:
            The 2-norm of the whole gradient before clipping.

        Raises:
            NonFiniteGradientError: a gradient is not finite. The weights are unchanged; gradients are dropped.
        """
        norm = self.clip_gradients()
        if not norm < float("inf"):
            self.drop_gradients()
            raise NonFiniteGradientError(
                f"found a gradient of norm {norm} at optimizer step {self.steps}, expected a finite one; the weights are "
                "unchanged: lower lr or grad_clip_norm, or look at the batch's log-probabilities"
            )
        self.update(lr)
        self.steps += 1
        return norm

    @abstractmethod
    def clip_gradients(self) -> float:
        """Clip the summed gradients to `TrainerConfig.grad_clip_norm`. Returns their 2-norm before. Collective."""

    @abstractmethod
    def update(self, lr: float) -> None:
        """Do an optimizer step, and drop the gradients. Collective."""

    @abstractmethod
    def drop_gradients(self) -> None:
        """Drop the gradients that were not applied."""

    @abstractmethod
    def reset_optimizer(self) -> None:
        """Forget the moments and start the learning-rate schedule again."""

    def use_muon(self, lr_scale: float) -> None:
        """Use Muon for the layers' matrices from now on; see `tailrace.trainer.optimizer.MuonWithAdamW`.

        Args:
            lr_scale: Muon's learning rate as a multiple of AdamW's.

        Raises:
            TrainerConfigError: this backend has none, or matrices are sharded.
        """
        raise TrainerConfigError(
            f"found Muon (lr_scale = {lr_scale}) with {type(self).__name__}, expected fsdp2 for it"
        )

    def reference(self, model_path: Path) -> Callable[[MicroBatch, float], Tensor]:
        """The frozen model in a directory, sharded like this one: log-probabilities of (micro-batch, temperature).

        Raises:
            TrainerConfigError: this backend keeps none.
        """
        raise TrainerConfigError(
            f"found kl_coefficient = {self.config.kl_coefficient} with {type(self).__name__}, which keeps no reference model "
            f"({model_path}); expected 0, or backend fsdp2"
        )

    def compile_layers(self, *, on: bool) -> None:
        """Have `torch.compile` compile the layers' passes from now on, or no longer; see `tailrace.trainer.compiled`.

        Raises:
            TrainerConfigError: this backend's are not compiled.
        """
        raise TrainerConfigError(
            f"found compile = {str(on).lower()} with {type(self).__name__}, which compiles nothing; expected backend fsdp2"
        )

    def critic(self) -> ShardedModel:
        """The critic of `TrainerConfig.critic`, sharded like this one, with an optimizer of its own. It begins with a model
        that has a value head, or as the policy's with a fresh one, and is never published. Collective.

        Raises:
            ModelError: its directory has no model with a value head, or one that does not fit the policy.
        """
        init = self.config.critic.init
        if init is not None:
            check_critic_init(init, self.model_path)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        return type(self)(init or self.model_path, self.config, self.device, rank, ranks, values=True)

    def _load_whole(self, path: Path, dtype: torch.dtype) -> Policy:
        """The model in a directory, whole and probed."""
        if not self.values:
            return load_policy(path, dtype)
        return load_value_model(path, dtype, fresh=self.config.seed if self.fresh else None)

    def _empty(self, path: Path) -> Policy:
        """The model of a directory without memory, not probed."""
        dtype = parameter_dtype(self.config)
        return ValueModel(empty_value_lm(path, dtype)) if self.values else Policy(empty_lm(path, dtype))

    def offload(self, what: Collection[str]) -> int:
        """Move parts of the state into host memory, where nothing may use them. What is there already stays.

        Args:
            what: some of ``"parameters"``, ``"gradients"``, ``"optimizer"``.

        Returns:
            Bytes that were moved; 0 on a CPU.

        Raises:
            TrainerConfigError: this backend moves none, or there is no such part.
        """
        if not what:
            return 0
        raise TrainerConfigError(
            f"found offload of {', '.join(what)} with {type(self).__name__}, which moves nothing; expected backend fsdp2"
        )

    def onload(self, what: Collection[str]) -> int:
        """Move parts back, bit for bit. See `offload`."""
        return self.offload(what)

    # ---- weights --------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The whole parameters' shapes by Hugging Face name, tied ones once, in the order of `whole_parameters`."""

    @abstractmethod
    def whole_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters under Hugging Face names, in `parameter_dtype`. Collective: every rank runs through them."""

    @abstractmethod
    def layout(self) -> Layout:
        """Which rank (``rank0``, ...) holds which part of which parameter, in `dtype`; without communication."""

    @abstractmethod
    def shards(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's part of every parameter, as `layout` describes it, in `dtype`. Collective."""

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    @abstractmethod
    def state(self, *, moments: bool = True) -> Iterator[tuple[str, Tensor]]:
        """This rank's `rows` of parameters and moments, as ``KIND/NAME``; nothing on other cells than the first. Collective.

        A tensor is valid until the next one is taken.

        Args:
            moments: whether moments are among them.
        """

    @abstractmethod
    def restore(self, saved: SavedState) -> None:
        """Take weights, moments and step from a checkpoint. Collective."""


@contextlib.contextmanager
def onloaded(models: Sequence[ShardedModel], what: Collection[str]) -> Iterator[dict[str, float]]:
    """Bring offloaded parts of models to the device for this context, and offload them again after it.

    Args:
        models: the models.
        what: see `ShardedModel.offload`; nothing is moved without any.

    Yields:
        Metrics of moving them, once the context has ended: ``offload_bytes`` in both directions, ``onload_s``, ``offload_s``.
    """
    moved: dict[str, float] = {}
    if not what:
        yield moved
        return
    begun = time.perf_counter()
    moved["offload_bytes"] = sum(model.onload(what) for model in models)
    moved["onload_s"] = time.perf_counter() - begun
    try:
        yield moved
    finally:
        begun = time.perf_counter()
        moved["offload_bytes"] += sum(model.offload(what) for model in models)
        moved["offload_s"] = time.perf_counter() - begun
