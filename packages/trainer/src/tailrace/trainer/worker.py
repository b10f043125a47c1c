"""One rank of the trainer.

Every rank gets the same batch and takes its share, so no data has to be scattered:

    step        experiences -> samples (advantages, token weights) -> gradients, summed over ranks and cells
                -> scaled once, by the batch's tokens or responses -> clip -> AdamW
    accumulate  complete groups -> gradients of this cell; nothing goes to other cells, weights stay
    apply       what is left of the batch, then as `step` from the sum on

A gradient is a sum over tokens until it is scaled, so it is that of one process that computes the batch at once, however the
batch is split over micro-batches, ranks, cells and time (RollPacker, section 4.4).
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from tailrace.contracts import Experience
from tailrace.paramserver.layout import Layout
from tailrace.trainer.batch import check_mini_batches, grpo_samples, supervised_samples
from tailrace.trainer.checkpoint import CheckpointWriter, export_model
from tailrace.trainer.compiled import compilations, compile_where_equal
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.critic import Critic
from tailrace.trainer.demonstrations import TokenExample
from tailrace.trainer.errors import BatchError, DeviceError, ProcessGroupError, TrainerConfigError
from tailrace.trainer.forward_backward import Gradients
from tailrace.trainer.fsdp2 import Fsdp2Model
from tailrace.trainer.layout import TrainingSample
from tailrace.trainer.metrics import merge_metrics, with_critic
from tailrace.trainer.network_interfaces import LOOPBACK
from tailrace.trainer.optimizer import learning_rate
from tailrace.trainer.partial_batch import PartialBatch
from tailrace.trainer.rendezvous import SCHEME, Met, meet
from tailrace.trainer.sharded_model import ShardedModel, onloaded
from tailrace.trainer.tally import Tally, means, versions

logger = logging.getLogger(__name__)


def resolve_device(name: str, rank: int) -> torch.device:
    """The device of a rank; ``"auto"`` takes CUDA if available.

    Raises:
        DeviceError: CUDA was asked for and is not available.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceError("found no CUDA device, expected one since device = 'cuda'; set device = 'cpu' or 'auto'")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def join(rank: int, world_size: int, rendezvous: str | None, device: torch.device, timeout_s: float) -> bool:
    """Join the process group, or use an existing one.

    Args:
        rank: this rank, 0 to ``world_size - 1``.
        world_size: number of ranks.
        rendezvous: ``meet://`` (module `rendezvous`), ``file://`` or ``tcp://`` URL, the same for all ranks; None for one rank.
        device: this rank's device.
        timeout_s: deadline of the rendezvous and of every collective operation.

    Returns:
        Whether this call created the group, so that the caller must leave it.

    Raises:
        TrainerConfigError: `rank`, `world_size` and `rendezvous` do not fit together, or an interface does not exist.
        ProcessGroupError: a group of another shape exists already, or not all ranks came.
    """
    if not 0 <= rank < world_size:
        raise TrainerConfigError(f"found rank {rank} of {world_size}, expected 0 <= rank < world_size")
    if dist.is_initialized():
        found = (dist.get_rank(), dist.get_world_size())
        if found != (rank, world_size):
            raise ProcessGroupError(
                f"found this process to be rank {found[0]} of {found[1]} already, expected {rank} of {world_size}; "
                "use a fresh process"
            )
        return False
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    timeout = timedelta(seconds=timeout_s)
    if rendezvous is None:
        if world_size != 1:
            raise TrainerConfigError(
                f"found no rendezvous for {world_size} ranks, expected a meet://, file:// or tcp:// URL"
            )
        _speak_on(LOOPBACK, device)
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
        return True
    if rendezvous.startswith(SCHEME):
        store = _store(meet(rendezvous, rank, world_size, timeout_s), rank, world_size, timeout, device)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
        return True
    if not rendezvous.startswith(("file://", "tcp://")):
        raise TrainerConfigError(f"found the rendezvous {rendezvous!r}, expected a meet://, file:// or tcp:// URL")
    if rendezvous.startswith(("file://", "tcp://127.", "tcp://localhost", "tcp://[::1]")):
        _speak_on(LOOPBACK, device)
    dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world_size, timeout=timeout)
    return True


def _store(met: Met, rank: int, world_size: int, timeout: timedelta, device: torch.device) -> dist.Store:
    """The store of ranks that met: a file on one machine, else a server at the first rank's address, and at no other."""
    _speak_on(met.interface, device, named=met.named)
    if met.file is not None:
        return dist.FileStore(str(met.file), world_size)
    listener = -1 if met.listener is None else met.listener.detach()
    try:
        return dist.TCPStore(
            met.host,
            met.port,
            world_size,
            rank == 0,
            timeout,
            wait_for_workers=False,  # whoever is late is missed when the group is formed
            **({} if rank else {"master_listen_fd": listener}),
        )
    except (RuntimeError, ValueError) as error:  # torch's DistError is a RuntimeError
        raise ProcessGroupError(
            f"rank {rank} does not reach the trainer's first rank at {met.host}:{met.port}: {str(error).splitlines()[0]}"
        ) from error


def _speak_on(interface: str, device: torch.device, *, named: bool = False) -> None:
    """Have collectives bind to the addresses of one interface; if nobody named it, the environment may name another.

    By default gloo takes the address that the host name resolves to, and NCCL the first interface but loopback.
    """
    chosen = {"GLOO_SOCKET_IFNAME": interface}
    if device.type == "cuda":
        chosen["NCCL_SOCKET_IFNAME"] = f"={interface}"
    os.environ.update(chosen if named else {name: os.environ.get(name, value) for name, value in chosen.items()})


class BuildsModel(Protocol):
    """Builds a rank's part of the model, once the process group is joined."""

    def __call__(
        self, model_path: Path, config: TrainerConfig, device: torch.device, rank: int, world_size: int
    ) -> ShardedModel:
        """See `ShardedModel` for the arguments."""
        ...


class TrainerWorker:
    """A rank of a backend, FSDP2 unless told: GRPO and supervised steps, weights, checkpoints.

    Methods marked *collective* must be called on every rank, in the same order. `accumulate` is collective within a cell: see
    ``cells`` in `TrainerConfig`; cell 0 has the first ranks, and so on.

    Args:
        model_path: directory of a Hugging Face causal LM, for example a checkpoint.
        config: settings, the same on every rank.
        rank: this process, from 0.
        world_size: number of ranks.
        rendezvous: ``meet://``, ``file://`` or ``tcp://`` URL at which ranks meet; None for a world of one.
        model: the backend's part, which is all that backends differ in.

    Raises:
        ModelError: the directory has no causal LM.
        DeviceError: CUDA was asked for and is not available.
        TrainerConfigError, ProcessGroupError: rank, world size, cells and rendezvous do not fit together.
    """

    def __init__(
        self,
        model_path: str | Path,
        config: TrainerConfig,
        *,
        rank: int = 0,
        world_size: int = 1,
        rendezvous: str | None = None,
        model: BuildsModel = Fsdp2Model,
    ) -> None:
        if world_size % config.cells:
            raise TrainerConfigError(
                f"found {world_size} ranks for {config.cells} cells, expected a multiple: all cells have as many"
            )
        if config.threads:
            torch.set_num_threads(config.threads)
        self.config = config
        self.rank = rank
        self.world_size = world_size
        self.device = resolve_device(config.device, rank)
        self._leaves_group = join(rank, world_size, rendezvous, self.device, config.timeout_s)
        try:
            self._open(Path(model_path), model)
        except BaseException:  # whoever builds another in this process joins another group
            self._leave()
            raise

    def _open(self, model_path: Path, model: BuildsModel) -> None:
        config = self.config
        torch.manual_seed(config.seed + self.rank)
        self.notes: list[str] = []
        """See `TrainingBackend.notes`."""
        self._model = model(model_path, config, self.device, self.rank, self.world_size)
        shared_prompt_tokens = config.shared_prompt_tokens if self._model.shares_prompts else 0
        self._vocabulary = self._model.vocabulary
        reference = self._model.reference(model_path) if config.keeps_reference else None
        self._critic_model = self._model.critic() if config.has_critic else None
        if self._critic_model is not None:
            if not self._critic_model.shares_prompts:
                shared_prompt_tokens = 0
            self._model.packs = self._critic_model.packs = self._model.packs and self._critic_model.packs
        if config.packing and not self._model.packs:
            self._note(
                f"found packing = true with the model {model_path}, which does not keep to each response's own tokens of a "
                "packed row: its micro-batches are padded"
            )
        self._compiled = config.compile and self._compile(model_path)
        self._mini_batches = 1
        self.on_phase: Callable[[str], None] = lambda _: None
        """Called as "forward" and "backward" of a micro-batch, and the "optimizer" step, begin. It may be set to another."""
        of_loss = reference if config.kl_coefficient else None
        self._gradients = Gradients(self._model, of_loss, shared_prompt_tokens, lambda phase: self.on_phase(phase))
        self._critic: Critic | None = None
        if self._critic_model is not None:
            self._critic = Critic(
                self._critic_model,
                config,
                self._gradients.micro_batches,
                reference,
                on_phase=lambda phase: self.on_phase(phase),
                ended=lambda: self._gradients.ended(),
            )
        self._needs_proximal = config.open_loss().needs_proximal
        self._parts = PartialBatch(self._gradients, self._model, self._critic, self._vocabulary)
        self._model_path = model_path
        self._checkpoints = CheckpointWriter(
            model_path, self._model, self.rank, self.world_size, config.timeout_s, critic=self._critic_model
        )

    def _compile(self, model_path: Path) -> bool:
        """Have the layers compiled, where that can be and changes nothing. Returns whether all models' are. Collective."""
        names = ("policy", "critic")
        why = compile_where_equal(dict(zip(names, self._models, strict=False)), model_path)
        if why:
            self._note(f"found compile = true with {model_path}: {why}; its layers are not compiled")
        return not why

    def _note(self, text: str) -> None:
        if self.rank == 0:
            logger.warning("%s", text)
            self.notes.append(text)

    def watch_micro_batches(self, ended: Callable[[], None]) -> bool:
        """Have a function called at the end of each micro-batch from now on, on the thread that computes it. Returns True."""
        self._gradients.ended = ended
        return True

    @property
    def expected_micro_batches(self) -> int:
        """About how many micro-batches the call under way has, on this rank: its mini-batches are taken for alike."""
        passes = 1 if self._critic is None else 1 + self._critic.passes
        return self._gradients.planned * self._mini_batches * passes

    @property
    def weights_version(self) -> int | None:
        """The version of the weights, from which metrics count staleness. It may be set; None: they do not."""
        return self._gradients.version

    @weights_version.setter
    def weights_version(self, version: int | None) -> None:
        self._gradients.version = version

    @property
    def _models(self) -> list[ShardedModel]:
        """The policy's model, and the critic's, if there is one."""
        return [self._model] if self._critic_model is None else [self._model, self._critic_model]

    @property
    def _policy_moves(self) -> bool:
        """Whether the policy makes its next optimizer step: not while a critic alone is trained."""
        return self._critic is None or self._critic.is_warm

    @property
    def steps(self) -> int:
        """Optimizer steps since the start or since `reset_optimizer`."""
        return self._model.steps

    def step(self, mini_batches: Sequence[Sequence[Experience]]) -> dict[str, float]:
        """Do one optimizer step for each mini-batch. Collective.

        Returns:
            Metrics, the same on every rank. Response tokens are those that the model generated, without what environments
            answered. Means over response tokens: ``clip_fraction``, ``clip_fraction_low`` and ``clip_fraction_high`` (whose
            gradient the loss's clip took away), ``approx_kl`` (nats, against the
            behaviour policy), ``ratio_mean``, ``entropy`` (nats, if asked for), ``reference_kl`` (nats, with
            ``kl_coefficient``). Means over mini-batches: ``loss``, ``grad_norm`` (before clipping). Over the batch:
            ``reward_mean``, ``tokens`` (response tokens), ``response_tokens_mean``, ``response_tokens_max``,
            ``trajectories``, ``lr`` (of the last step), ``effective_sample_size`` (of the importance ratios, as a share of the
            tokens). With `weights_version`: ``mismatch_kl`` (nats, of engine and trainer with equal weights: over tokens of
            staleness 0, before the first optimizer step), and ``tokens_staleness_K``, ``ratio_staleness_K``,
            ``kl_staleness_K``, ``effective_sample_size_staleness_K`` for each staleness K of tokens, of which 7 is 7 and more.
            With a critic, over all its optimizer steps on the batch: ``value_loss``, ``value_clip_fraction`` (of tokens whose
            gradient its clip took away), ``critic_grad_norm`` (before clipping), and of its values before them ``value_mean``,
            ``return_mean`` and ``explained_variance`` (1 - variance of their errors / variance of returns); ``lr`` and
            ``grad_norm`` are 0 while it alone is trained. With `TrainerConfig.compile`: ``compiled`` (1 or 0), and since the
            start ``compiled_graphs``, ``graph_breaks`` and ``recompiles``; see `tailrace.trainer.compiled.compilations`.
            Seconds of this rank: ``step_s``, ``forward_s``, ``backward_s``, ``optimizer_s``, ``proximal_s`` of passes for it,
            ``critic_s`` of all that a critic does (on CUDA the time to launch, not to finish).

        Raises:
            BatchError: the batch cannot be trained on, or `accumulate` began another. Nothing was changed.
            NonFiniteGradientError: a gradient is not finite. Mini-batches before it have been applied.
        """
        started = time.perf_counter()
        self._on_device()
        self._require_no_part("a step")
        mini_batches = check_mini_batches(mini_batches)
        batches = grpo_samples(mini_batches, self.config, self._vocabulary)
        for number, samples in enumerate(batches):
            if not samples:
                raise BatchError(f"found no response token in mini-batch {number}, expected at least one")
        steps, self._mini_batches = [], len(mini_batches)
        moves = self._policy_moves
        of_critic, advantages = self._learned(batches)
        seconds, proximal = self._proximal(batches)
        for experiences, samples, before, ahead in zip(mini_batches, batches, proximal, advantages, strict=True):
            self._model.drop_gradients()
            tally = self._gradients.add(samples, alone=False, proximal=before, advantages=ahead, learn=moves)
            if self._model.counts_all(alone=False):
                tally.count(experiences, self.config)
            steps.append(self._finish(tally, tally.over(self._model.group), self._scheduled_lr(), moves=moves))
        metrics = with_critic(merge_metrics(steps), of_critic)
        return metrics | seconds | {"step_s": time.perf_counter() - started}

    def accumulate(self, experiences: Sequence[Experience]) -> dict[str, float]:
        """Add the gradients of complete groups of a batch to this cell's, without an optimizer step. Collective in the cell.

        Cells may do so at the same time, with different groups and different numbers of calls, until `apply` ends the batch.

        Args:
            experiences: one or more groups, each whole.

        Returns:
            Metrics of these experiences as those of `step`, without ``grad_norm``, ``lr`` and ``optimizer_s``.

        Raises:
            BatchError: a group came before, or cannot be trained on. Nothing was changed.
            TrainerConfigError: advantages need the whole batch.
        """
        started, self._mini_batches = time.perf_counter(), 1
        self._on_device()
        tally = self._parts.add(tuple(experiences) if isinstance(experiences, Iterator) else experiences)
        metrics = self._reported(means(tally.over(self._model.cell_group)))
        seconds = {"forward_s": tally.forward_s, "backward_s": tally.backward_s}
        return metrics | seconds | {"step_s": time.perf_counter() - started}

    def apply(self, rest: Sequence[Experience] = ()) -> dict[str, float]:
        """Add the gradients of what is left of the batch, and do one optimizer step on all of it. Collective.

        Args:
            rest: the groups that no cell accumulated, each whole; the same on every rank. There may be none.

        Returns:
            Metrics of the whole batch as those of `step`, and ``version_oldest`` and ``version_mean``: the oldest version that
            made a token of any trajectory, and its mean over trajectories. Seconds are this rank's, since the batch began.

        Raises:
            BatchError: two cells accumulated the same group, a group of `rest` came before or cannot be trained on, or the
                batch has no response token.
            TrainerConfigError: advantages need the whole batch.
            NonFiniteGradientError: the gradient is not finite.
            With any of these the weights are unchanged, and what was accumulated is forgotten.
        """
        started, self._mini_batches = time.perf_counter(), 1
        self._on_device()
        tally = self._parts.end(tuple(rest) if isinstance(rest, Iterator) else rest)
        total = tally.over(self._model.group)
        if not total["tokens"]:
            raise BatchError("found no response token in the whole batch, expected at least one")
        moves = self._policy_moves
        of_critic = {} if self._critic is None else self._critic.apply()
        metrics = self._finish(tally, total, self._scheduled_lr(), moves=moves) | versions(total)
        return with_critic(metrics, of_critic) | {"step_s": time.perf_counter() - started}

    def sft_step(self, sequences: Sequence[TokenExample], *, lr: float) -> dict[str, float]:
        """Do one supervised step on the mean cross-entropy over the response tokens of all sequences. Collective.

        Args:
            sequences: pairs of prompt and response token ids; a third element says of each response token whether it is
                learned, or else only read, as what an environment answered.
            lr: learning rate of this step; the schedule of `config` does not apply.

        Returns:
            ``loss`` (nats per token), ``grad_norm``, ``tokens``, ``lr`` and the seconds that `step` reports.

        Raises:
            BatchError: the sequences cannot be trained on. Nothing was changed.
            NonFiniteGradientError: the gradient is not finite. Nothing was changed.
        """
        started = time.perf_counter()
        self._on_device()
        self._require_no_part("a supervised step")
        samples = supervised_samples(sequences, self._vocabulary)
        self._model.drop_gradients()
        tally = self._gradients.add(samples, alone=False, supervised=True)
        if self._model.counts_all(alone=False):
            tally.count_tokens(sum(len(sample.trained) for sample in samples))
        metrics = self._finish(tally, tally.over(self._model.group), lr)
        kept = ("loss", "grad_norm", "tokens", "lr", "forward_s", "backward_s", "optimizer_s")
        return {name: metrics[name] for name in kept} | {"step_s": time.perf_counter() - started}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full tensors under Hugging Face names, tied parameters once, in the dtype of the forward pass. Collective.

        Every rank must iterate over all of them. In a world of one they are the trainer's own memory; copy a tensor that must
        outlast the next step.
        """
        self._on_device()
        for name, tensor in self._model.whole_parameters():
            yield name, tensor.to(self._model.dtype)

    def layout(self) -> Layout:
        """Which rank holds which part of which parameter; ranks are called ``rank0``, ``rank1``, ... The same on every rank."""
        return self._model.layout()

    def shards(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's part of every parameter, as `layout` describes it, in the dtype that is computed in. Collective."""
        self._on_device()
        return self._model.shards()

    def save(self, directory: str | Path, version: int, *, full: bool = True) -> Future[Path]:
        """Write a checkpoint. Collective; returns once the state is copied to host memory.

        There is one copy: a save waits until the one before is written from it. Two may be under way, a third one waits for the
        first to be durable.

        When rank 0's future is done, the directory is complete and durable; before that it does not exist. It is a Hugging
        Face model directory with the weights of `version`, for `load_weights_file`, and also the state for `load`.

        Args:
            directory: its name.
            version: its version.
            full: whether it has the state for `load`, or the weights alone.

        Raises:
            CheckpointTimeoutError: it has to wait, and no byte of the ones before was written until the deadline.
        """
        self._on_device()
        with onloaded(self._models, self.config.offload) if full else contextlib.nullcontext():
            return self._checkpoints.save(Path(directory), version, full=full)

    def load(self, directory: str | Path, weights: Mapping[str, Tensor] | None = None) -> int:
        """Restore weights, optimizer and schedule, bit for bit, from a checkpoint of any number of ranks and cells. Collective.

        Random state is restored only if the number of ranks is the same. What was accumulated is forgotten. The reference model
        stays the one that this worker was created with.

        Args:
            directory: the checkpoint.
            weights: whole parameters of the policy, named and in the dtype as `weights` gives them, to take in place of the
                checkpoint's, such as newer ones that were published. A number that the checkpoint has in more bits keeps them
                where it rounds to the published one.

        Returns:
            The version of the checkpoint.

        Raises:
            CheckpointError: the checkpoint is missing, damaged, of another model, has weights alone, or one of the two has no
                critic; or `weights` are of another model: on every rank, what the first that found it says. Nothing was
                changed, unless a checkpoint of another number of ranks is damaged.
        """
        self._on_device()
        self._parts.forget()
        with onloaded(self._models, self.config.offload):
            return self._checkpoints.load(Path(directory), weights)

    def export(self, directory: str | Path) -> None:
        """Write the weights as a Hugging Face model directory, without the trainer's state. Collective; not atomic."""
        self._on_device()
        export_model(Path(directory), self._model_path, self._model, self.rank)

    def reset_optimizer(self) -> None:
        """Forget the optimizer's moments and start the learning-rate schedule again."""
        self._model.reset_optimizer()

    def use_muon(self, lr_scale: float) -> None:
        """Use Muon for supervised steps, in a world of one. Checkpoints lack its state, so use `export` instead of `save`.

        Args:
            lr_scale: Muon's learning rate as a multiple of the step's, which applies to embeddings and norms.
        """
        self._model.use_muon(lr_scale)

    @property
    def offloads(self) -> frozenset[str]:
        """The parts that `offload` moves."""
        return self._model.offloads

    def offload(self, what: Collection[str]) -> int:
        """Move parts of the state, the critic's too, into pinned host memory; see `ShardedModel.offload`.

        Who needs them then gets `OffloadedError`. What torch keeps of the device's memory for reuse is given back, so that
        another process can have it. A reference model stays. Collective in the cell: when it returns, all its ranks are done.

        Returns:
            Bytes that the cell's ranks moved.
        """
        self._on_device()
        moved = sum(model.offload(what) for model in self._models)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return self._over_cell(moved)

    def onload(self, what: Collection[str]) -> int:
        """Move parts back, bit for bit. Collective in the cell. Returns the bytes that its ranks moved."""
        self._on_device()
        return self._over_cell(sum(model.onload(what) for model in self._models))

    def _on_device(self) -> None:
        """Make this rank's device the calling thread's: each thread has its own, whose streams it makes and waits for."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def _over_cell(self, nbytes: int) -> int:
        total = torch.tensor(nbytes, dtype=torch.int64)
        dist.all_reduce(total, group=self._model.cell_group)
        return int(total.item())

    def close(self) -> None:
        """Wait for the checkpoint under way and leave the process group."""
        with contextlib.ExitStack() as ending:  # the last first, and all of them whatever one raises
            ending.callback(self._leave)
            for model in self._models:
                ending.callback(model.close)
            ending.callback(self._checkpoints.close)

    def _leave(self) -> None:
        if self._leaves_group and dist.is_initialized():
            dist.destroy_process_group()
            self._leaves_group = False

    def __enter__(self) -> TrainerWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _scheduled_lr(self) -> float:
        return learning_rate(self.config, self._model.steps)

    def _learned(self, batches: Sequence[Sequence[TrainingSample]]) -> tuple[dict[str, float], list[Sequence[Tensor]]]:
        """The critic's metrics, and the advantages that it gives the micro-batches of each mini-batch; nothing without one."""
        if self._critic is None:
            return {}, [()] * len(batches)
        metrics, advantages = self._critic.learn(batches)
        return metrics, [*advantages]

    def _proximal(self, batches: Sequence[Sequence[TrainingSample]]) -> tuple[dict[str, float], list[Sequence[Tensor]]]:
        """Seconds, and the log-probabilities of each mini-batch under the weights as they are, if its gradient lacks them."""
        if not self._needs_proximal or len(batches) == 1:
            return {}, [()] * len(batches)
        begun = time.perf_counter()
        # no optimizer step comes before the first mini-batch: its own pass computes them
        found = [(), *(self._gradients.logprobs(samples) for samples in batches[1:])]
        return {"proximal_s": time.perf_counter() - begun}, found

    def _require_no_part(self, what: str) -> None:
        if self._parts.begun:
            raise BatchError(
                f"found gradients of {self._parts.begun} groups of a batch, expected `apply` before {what}"
            )

    def _finish(self, tally: Tally, total: dict[str, float], lr: float, *, moves: bool = True) -> dict[str, float]:
        """Sum the gradients over cells, scale them once, and do an optimizer step. Returns the metrics of its batch.

        Args:
            tally: this rank's.
            total: that of all ranks.
            lr: the learning rate.
            moves: whether there is a step; otherwise the weights stay, at a rate of 0.
        """
        begun, grad_norm, moved = time.perf_counter(), 0.0, dict[str, float]()
        if moves:
            self.on_phase("optimizer")
            self._model.total_gradients(max(1.0, total["units"]))
            with onloaded([self._model], self.config.offload) as moved:
                grad_norm = self._model.apply_gradients(lr)
        return self._reported(means(total)) | {
            "grad_norm": grad_norm,
            "lr": lr if moves else 0.0,
            **({"compiled": float(self._compiled)} | compilations(self.device) if self.config.compile else {}),
            "forward_s": tally.forward_s,
            "backward_s": tally.backward_s,
            "optimizer_s": time.perf_counter() - begun,
            **moved,
        }

    def _reported(self, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics without those that were not asked for."""
        left_out = set() if self.config.entropy else {"entropy"}
        left_out |= set() if self.config.kl_coefficient else {"reference_kl"}
        return {name: value for name, value in metrics.items() if name not in left_out}
