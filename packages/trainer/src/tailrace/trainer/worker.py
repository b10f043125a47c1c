"""One rank of the trainer.

Every rank gets the same batch and takes its share, so no data has to be scattered:

    experiences -> samples (advantages, token weights) -> rows -> this rank's micro-batches
                -> forward, backward for each -> gradients summed over ranks -> clip -> AdamW

A sample's token weights refer to the whole mini-batch. Therefore the summed gradient equals that of one process that computes
the mini-batch at once, however it is split.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tailrace.contracts import Experience
from tailrace.paramserver.layout import Layout
from tailrace.trainer.batch import grpo_samples, supervised_samples
from tailrace.trainer.checkpoint import CheckpointWriter, export_model, restore
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.grpo import clipped_surrogate
from tailrace.trainer.layout import TrainingSample, plan
from tailrace.trainer.microbatch import MicroBatch, to_tensors
from tailrace.trainer.policy import load_policy
from tailrace.trainer.processes import join, resolve_device
from tailrace.trainer.sharded import ShardedPolicy

_SUMS = ("loss", "clip_fraction", "approx_kl", "ratio_mean", "entropy")


class TrainerWorker:
    """A rank of the FSDP2 backend: GRPO and supervised steps, weights, checkpoints.

    Methods marked *collective* must be called on every rank, in the same order.

    Args:
        model_path: directory of a Hugging Face causal LM, for example a checkpoint.
        config: settings, the same on every rank.
        rank: this process, from 0.
        world_size: number of ranks.
        rendezvous: ``file://`` or ``tcp://`` URL at which ranks meet; None for a world of one.

    Raises:
        ModelError: the directory has no causal LM.
        DeviceError: CUDA was asked for and is not available.
        TrainerConfigError, ProcessGroupError: rank, world size and rendezvous do not fit together.
    """

    def __init__(
        self,
        model_path: str | Path,
        config: TrainerConfig,
        *,
        rank: int = 0,
        world_size: int = 1,
        rendezvous: str | None = None,
    ) -> None:
        if config.threads:
            torch.set_num_threads(config.threads)
        self.config = config
        self.rank = rank
        self.world_size = world_size
        self.device = resolve_device(config.device, rank)
        self._leaves_group = join(rank, world_size, rendezvous, self.device, config.timeout_s)
        torch.manual_seed(config.seed + rank)
        policy = load_policy(model_path)
        self._shared_prompt_tokens = config.shared_prompt_tokens if policy.shares_prompts else 0
        self._state = ShardedPolicy(policy, config, self.device, world_size)
        self._model_path = Path(model_path)
        self._checkpoints = CheckpointWriter(self._model_path, self._state, rank, world_size, config.timeout_s)

    @property
    def steps(self) -> int:
        """Optimizer steps since the start or since `reset_optimizer`."""
        return self._state.steps

    def step(self, mini_batches: Sequence[Sequence[Experience]]) -> dict[str, float]:
        """Do one optimizer step of GRPO for each mini-batch. Collective.

        Returns:
            Metrics, the same on every rank. Means over response tokens: ``clip_fraction``, ``approx_kl`` (nats, against the
            behaviour policy), ``ratio_mean``, ``entropy`` (nats, if asked for). Means over mini-batches: ``loss``,
            ``grad_norm`` (before clipping). Over the batch: ``reward_mean``, ``tokens`` (response tokens),
            ``response_tokens_mean``, ``response_tokens_max``, ``trajectories``, ``lr`` (of the last step). Seconds of this
            rank: ``step_s``, ``forward_s``, ``backward_s``, ``optimizer_s`` (on CUDA the time to launch, not to finish).

        Raises:
            BatchError: the batch cannot be trained on. Nothing was changed.
            NonFiniteGradientError: a gradient is not finite. Mini-batches before it have been applied.
        """
        started = time.perf_counter()
        batches = grpo_samples(mini_batches, self.config)
        totals: dict[str, float] = {}
        for samples in batches:
            tokens = sum(len(sample.response) for sample in samples)
            for name, value in self._optimise(samples, self._scheduled_lr(), supervised=False).items():
                # Means over tokens are weighted by tokens, the others by mini-batches.
                share = tokens if name in _SUMS[1:] else 1.0
                totals[name] = totals.get(name, 0.0) + value * share
        batch = [experience for mini_batch in mini_batches for experience in mini_batch]
        lengths = [len(experience.tokens) for experience in batch]
        metrics = {
            name: value if name.endswith("_s") else value / (sum(lengths) if name in _SUMS[1:] else len(batches))
            for name, value in totals.items()
        }
        metrics["lr"] = float(self._state.optimizer.param_groups[0]["lr"])
        metrics["reward_mean"] = sum(experience.reward or 0.0 for experience in batch) / len(batch)
        metrics["trajectories"] = float(len(batch))
        metrics["tokens"] = float(sum(lengths))
        metrics["response_tokens_mean"] = sum(lengths) / len(batch)
        metrics["response_tokens_max"] = float(max(lengths))
        metrics["step_s"] = time.perf_counter() - started
        return metrics

    def sft_step(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], *, lr: float) -> dict[str, float]:
        """Do one supervised step on the mean cross-entropy over the response tokens of all sequences. Collective.

        Args:
            sequences: pairs of prompt and response token ids.
            lr: learning rate of this step; the schedule of `config` does not apply.

        Returns:
            ``loss`` (nats per token), ``grad_norm``, ``tokens``, ``lr`` and the seconds that `step` reports.

        Raises:
            BatchError: the sequences cannot be trained on. Nothing was changed.
            NonFiniteGradientError: the gradient is not finite. Nothing was changed.
        """
        started = time.perf_counter()
        samples = supervised_samples(sequences)
        metrics = self._optimise(samples, lr, supervised=True)
        tokens = sum(len(sample.response) for sample in samples)
        return metrics | {"lr": lr, "tokens": float(tokens), "step_s": time.perf_counter() - started}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full tensors under Hugging Face names, tied parameters once, in the dtype of the forward pass. Collective.

        Every rank must iterate over all of them. In a world of one they are the trainer's own memory; copy a tensor that must
        outlast the next step.
        """
        for name, tensor in self._state.full_parameters():
            yield name, tensor.to(self._state.dtype)

    def layout(self) -> Layout:
        """Which rank holds which part of which parameter; ranks are called ``rank0``, ``rank1``, ... The same on every rank."""
        return self._state.layout()

    def shards(self) -> Iterator[tuple[str, Tensor]]:
        """This rank's part of every parameter, as `layout` describes it; in the dtype that is computed in. One at a time."""
        for name, shard in self._state.shards.items():
            yield name, shard.to(self._state.dtype)

    def save(self, directory: str | Path, version: int) -> Future[Path]:
        """Write a checkpoint of the whole state. Collective; returns once the state is copied to host memory.

        When rank 0's future is done, the directory is complete and durable; before that it does not exist. It is a Hugging
        Face model directory with the weights of `version`, for `load_weights_file`, and also the state for `load`.

        Raises:
            CheckpointTimeoutError: the previous checkpoint is still being written at the deadline.
        """
        return self._checkpoints.save(Path(directory), version)

    def load(self, directory: str | Path) -> int:
        """Restore weights, optimizer and schedule, bit for bit, from a checkpoint of any number of ranks. Collective.

        Random state is restored only if the number of ranks is the same.

        Returns:
            The version of the checkpoint.

        Raises:
            CheckpointError: the checkpoint is missing, damaged, or of another model.
        """
        return restore(Path(directory), self._state, self.rank, self.world_size)

    def export(self, directory: str | Path) -> None:
        """Write the weights as a Hugging Face model directory, without the trainer's state. Collective; not atomic."""
        export_model(Path(directory), self._model_path, self._state, self.rank)

    def reset_optimizer(self) -> None:
        """Forget the optimizer's moments and start the learning-rate schedule again."""
        self._state.reset_optimizer()

    def use_muon(self, lr_scale: float) -> None:
        """Use Muon for supervised steps, in a world of one. Checkpoints lack its state, so use `export` instead of `save`.

        Args:
            lr_scale: Muon's learning rate as a multiple of the step's, which applies to embeddings and norms.
        """
        self._state.use_muon(lr_scale)

    def close(self) -> None:
        """Wait for the checkpoint under way and leave the process group."""
        self._checkpoints.close()
        if self._leaves_group and dist.is_initialized():
            dist.destroy_process_group()
            self._leaves_group = False

    def __enter__(self) -> TrainerWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _scheduled_lr(self) -> float:
        config = self.config
        return config.lr * min(1.0, (self._state.steps + 1) / max(1, config.warmup_steps))

    def _optimise(self, samples: Sequence[TrainingSample], lr: float, *, supervised: bool) -> dict[str, float]:
        mine = plan(
            samples,
            ranks=self.world_size,
            token_budget=self.config.micro_batch_tokens,
            shared_prompt_tokens=self._shared_prompt_tokens,
        )[self.rank]
        sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=self.device)
        forward_s = backward_s = 0.0
        self._state.drop_gradients()
        for number, rows in enumerate(mine):
            begun = time.perf_counter()
            batch = to_tensors(rows, self.device, self._state.dtype)
            with self._state.micro_batch(last=number == len(mine) - 1) as module:
                loss, values = self._loss(module, batch, supervised)
                turned = time.perf_counter()
                loss.backward()
            sums += values
            forward_s += turned - begun
            backward_s += time.perf_counter() - turned
        begun = time.perf_counter()
        grad_norm = self._state.apply_gradients(lr)
        dist.all_reduce(sums)
        tokens = sum(len(sample.response) for sample in samples)
        metrics = dict(zip(_SUMS, sums.tolist(), strict=True))
        for name in _SUMS[1:]:
            metrics[name] /= tokens
        for name in _SUMS[1:] if supervised else (() if self.config.entropy else ("entropy",)):
            del metrics[name]
        return metrics | {
            "grad_norm": grad_norm,
            "forward_s": forward_s,
            "backward_s": backward_s,
            "optimizer_s": time.perf_counter() - begun,
        }

    def _loss(self, module: Any, batch: MicroBatch, supervised: bool) -> tuple[Tensor, Tensor]:
        config = self.config
        wants_entropy = config.entropy and not supervised
        logprobs, entropy = module(batch, 1.0 if supervised else config.temperature, wants_entropy)
        zero = torch.zeros((), device=self.device)
        if supervised:
            loss = -(batch.weights * logprobs).sum()
            return loss, torch.stack([loss.detach(), zero, zero, zero, zero]).double()
        surrogate = clipped_surrogate(
            logprobs, batch.behaviour, batch.advantages, clip_low=config.clip_low, clip_high=config.clip_high
        )
        loss = (batch.weights * surrogate.loss).sum()
        values = [surrogate.clipped.float(), surrogate.kl, surrogate.ratio, entropy]
        return loss, torch.stack([loss.detach(), *(value.sum() * batch.counted for value in values)]).double()
