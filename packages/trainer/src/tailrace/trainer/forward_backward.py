"""Forward and backward passes over samples: gradients and losses are added to those that are there.

samples -> rows -> this rank's micro-batches -> forward, backward for each -> sums of gradients in the policy's parameters
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tailrace.trainer.grpo import clipped_surrogate, reference_kl
from tailrace.trainer.layout import TrainingSample, plan
from tailrace.trainer.microbatch import MicroBatch, to_tensors
from tailrace.trainer.sharded_model import ShardedModel
from tailrace.trainer.tally import Tally


class Gradients:
    """Adds the gradients of samples up.

    Args:
        model: the model, which has the gradients.
        reference: log-probabilities of (micro-batch, temperature) under the model that the KL penalty refers to; None without.
        shared_prompt_tokens: see `TrainerConfig`; 0 if the model cannot.
        on_phase: called as each micro-batch begins "forward" and "backward".
    """

    def __init__(
        self,
        model: ShardedModel,
        reference: Callable[[MicroBatch, float], Tensor] | None,
        shared_prompt_tokens: int,
        on_phase: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._model, self._config, self._reference = model, model.config, reference
        self._shared_prompt_tokens, self._on_phase = shared_prompt_tokens, on_phase
        self.ended: Callable[[], None] = lambda: None
        """called at the end of each micro-batch"""
        self.planned = 0
        """micro-batches of the samples that were added last, or are"""

    def add(self, samples: Sequence[TrainingSample], *, alone: bool, supervised: bool = False) -> Tally:
        """Add gradients of the weighted sum of the samples' losses.

        Args:
            samples: the samples, the same on all ranks that take part.
            alone: whether this cell computes all of them; otherwise all cells share them. Either way the call is collective
                within a cell, and nothing goes from one cell to another.
            supervised: whether the loss is the cross-entropy.

        Returns:
            This rank's losses, nothing counted.
        """
        model, config = self._model, self._config
        cells = 1 if alone else model.cells
        mine = plan(
            samples,
            ranks=cells * model.shares,
            cells=cells,
            token_budget=config.micro_batch_tokens,
            shared_prompt_tokens=self._shared_prompt_tokens,
        )[model.place if alone else model.cell * model.shares + model.place]
        tally, self.planned = Tally(model.device), len(mine)
        for number, rows in enumerate(mine):
            begun = time.perf_counter()
            batch = to_tensors(rows, model.device, model.dtype)
            self._on_phase("forward")
            with model.micro_batch(last=number == len(mine) - 1) as forward:
                loss, values = self._loss(forward, batch, supervised)
                turned = time.perf_counter()
                self._on_phase("backward")
                model.backward(loss)
            tally.see(values)
            tally.forward_s += turned - begun
            tally.backward_s += time.perf_counter() - turned
            self.ended()
        return tally

    def _loss(
        self, forward: Callable[..., tuple[Tensor, Tensor]], batch: MicroBatch, supervised: bool
    ) -> tuple[Tensor, Tensor]:
        """The loss of a micro-batch, and that and its sums over tokens in the order of a tally."""
        config = self._config
        temperature = 1.0 if supervised else config.temperature
        reference = None
        if self._reference is not None and not supervised:
            reference = self._reference(batch, temperature)
        logprobs, entropy = forward(batch, temperature, config.entropy and not supervised)
        if supervised:
            loss = -(batch.weights * logprobs).sum()
            return loss, loss.detach().double()[None]
        surrogate = clipped_surrogate(
            logprobs, batch.behaviour, batch.advantages, clip_low=config.clip_low, clip_high=config.clip_high
        )
        of_tokens, values = surrogate.loss, [surrogate.clipped.float(), surrogate.kl, surrogate.ratio, entropy]
        if reference is not None:
            penalty = reference_kl(logprobs, reference)
            of_tokens = of_tokens + config.kl_coefficient * penalty
            values.append(penalty.detach())
        loss = (batch.weights * of_tokens).sum()
        return loss, torch.stack([loss.detach().double(), *(value.double().sum() * batch.counted for value in values)])
