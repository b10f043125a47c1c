"""Forward and backward passes over samples: gradients and losses are added to those that are there.

samples -> rows -> this rank's micro-batches -> forward, backward for each -> sums of gradients in the policy's parameters
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tailrace.trainer.grpo import clipped_surrogate, reference_kl
from tailrace.trainer.layout import TrainingSample, plan
from tailrace.trainer.microbatch import MicroBatch, to_tensors
from tailrace.trainer.policy import Policy
from tailrace.trainer.sharded import ShardedPolicy
from tailrace.trainer.tally import Tally


class Reference:
    """The frozen model that the KL penalty refers to, sharded as the policy is.

    Args:
        model: the model, on the CPU.
        state: the policy.
    """

    def __init__(self, model: Policy, state: ShardedPolicy) -> None:
        model.requires_grad_(False).eval()
        self._module = state.shard(model, frees=True)

    def logprobs(self, batch: MicroBatch, temperature: float) -> Tensor:
        """Log-probabilities of the micro-batch's response tokens, ``[tokens]``. Collective within the cell."""
        with torch.no_grad():
            found: Tensor = self._module(batch, temperature, False)[0]
        return found


class Gradients:
    """Adds the gradients of samples up.

    Args:
        state: the policy, which has the gradients.
        reference: the model that the KL penalty refers to; None without one.
        shared_prompt_tokens: see `TrainerConfig`; 0 if the model cannot.
        on_phase: called as each micro-batch begins "forward" and "backward".
    """

    def __init__(
        self,
        state: ShardedPolicy,
        reference: Reference | None,
        shared_prompt_tokens: int,
        on_phase: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._state, self._config, self._reference = state, state.config, reference
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
        state, config = self._state, self._config
        cells = 1 if alone else state.cells
        mine = plan(
            samples,
            ranks=cells * state.ranks,
            cells=cells,
            token_budget=config.micro_batch_tokens,
            shared_prompt_tokens=self._shared_prompt_tokens,
        )[state.place if alone else state.cell * state.ranks + state.place]
        tally, self.planned = Tally(state.device), len(mine)
        for number, rows in enumerate(mine):
            begun = time.perf_counter()
            batch = to_tensors(rows, state.device, state.dtype)
            self._on_phase("forward")
            with state.micro_batch(last=number == len(mine) - 1) as module:
                loss, values = self._loss(module, batch, supervised)
                turned = time.perf_counter()
                self._on_phase("backward")
                loss.backward()
            tally.see(values)
            tally.forward_s += turned - begun
            tally.backward_s += time.perf_counter() - turned
            self.ended()
        return tally

    def _loss(self, module: Any, batch: MicroBatch, supervised: bool) -> tuple[Tensor, Tensor]:
        """The loss of a micro-batch, and that and its sums over tokens in the order of a tally."""
        config = self._config
        temperature = 1.0 if supervised else config.temperature
        reference = None
        if self._reference is not None and not supervised:
            reference = self._reference.logprobs(batch, temperature)
        logprobs, entropy = module(batch, temperature, config.entropy and not supervised)
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
