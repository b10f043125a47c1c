"""Forward and backward passes over samples: gradients and losses are added to those that are there.

samples -> rows -> this rank's micro-batches, and their tokens -> forward, backward for each -> sums of gradients in parameters
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tailrace.trainer.layout import PackedRow, TrainingSample, plan
from tailrace.trainer.losses import LossTokens
from tailrace.trainer.microbatch import MicroBatch, to_tensors
from tailrace.trainer.packed import load_tokens
from tailrace.trainer.sharded_model import ShardedModel
from tailrace.trainer.tally import Tally, sums_by_staleness


def reference_kl(logprobs: Tensor, reference: Tensor) -> Tensor:
    """``p - log p - 1`` for every token, with ``p = exp(reference - logprob)``: an estimator of KL(policy || reference) that
    is never negative (GRPO equation 4).

    Args:
        logprobs: log-probability of each token under the current weights, ``[tokens]``; differentiable.
        reference: under the reference model, ``[tokens]``.
    """
    log_ratio = reference - logprobs
    return log_ratio.expm1() - log_ratio


class Gradients:
    """Adds the gradients of samples up, by the loss of the model's configuration.

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
        self._loss = model.config.open_loss()
        self._shared_prompt_tokens, self._on_phase = shared_prompt_tokens, on_phase
        self.ended: Callable[[], None] = lambda: None
        """called at the end of each micro-batch"""
        self.planned = 0
        """micro-batches of the samples that were added last, or are"""
        self.version: int | None = None
        """version of the weights, from which staleness is counted; None: it is not"""

    def add(
        self,
        samples: Sequence[TrainingSample],
        *,
        alone: bool,
        supervised: bool = False,
        proximal: Sequence[Tensor] = (),
        advantages: Sequence[Tensor] = (),
        learn: bool = True,
    ) -> Tally:
        """Add gradients of the weighted sum of the samples' losses.

        Args:
            samples: the samples, the same on all ranks that take part.
            alone: whether this cell computes all of them; otherwise all cells share them. Either way the call is collective
                within a cell, and nothing goes from one cell to another.
            supervised: whether the loss is the cross-entropy.
            proximal: what `logprobs` gave for these samples before an optimizer step on the batch; without it, the weights are
                those from before the batch.
            advantages: of the tokens of each of this rank's `micro_batches`, as a critic has them; without it, those of the
                samples.
            learn: whether there is a backward pass; without it only losses are summed up.

        Returns:
            This rank's losses, nothing counted.
        """
        model = self._model
        mine = self.micro_batches(samples, alone=alone)
        tally = Tally(model.device)
        for number, rows in enumerate(mine):
            begun = time.perf_counter()
            batch = to_tensors(rows, model.device, model.dtype, packed=model.packs)
            if advantages:
                batch = replace(batch, advantages=advantages[number])
            self._on_phase("forward")
            with torch.set_grad_enabled(learn), model.micro_batch(last=number == len(mine) - 1) as forward:
                if supervised:
                    logprobs, _ = forward(batch, 1.0, False)
                    loss = -(batch.weights * logprobs).sum()
                    values = loss.detach().double()[None]
                else:
                    loss, values = self._policy_loss(forward, batch, proximal[number] if proximal else None)
                turned = time.perf_counter()
                if learn:
                    self._on_phase("backward")
                    model.backward(loss)
            tally.see(values)
            tally.forward_s += turned - begun
            tally.backward_s += time.perf_counter() - turned
            self.ended()
        return tally

    def logprobs(self, samples: Sequence[TrainingSample]) -> list[Tensor]:
        """Log-probabilities under the weights as they are, of each micro-batch that `add` of these samples has. Collective."""
        model, found = self._model, []
        for rows in self.micro_batches(samples, alone=False):
            self._on_phase("forward")
            with torch.no_grad(), model.micro_batch(last=True) as forward:
                batch = to_tensors(rows, model.device, model.dtype, packed=model.packs)
                found.append(forward(batch, self._config.temperature, False)[0])
            self.ended()
        return found

    def micro_batches(self, samples: Sequence[TrainingSample], *, alone: bool) -> list[list[PackedRow]]:
        """This rank's micro-batches of samples, with their tokens. The same ones for the same samples."""
        model, cells = self._model, 1 if alone else self._model.cells
        mine = plan(
            samples,
            ranks=cells * model.shares,
            cells=cells,
            token_budget=self._config.micro_batch_tokens,
            shared_prompt_tokens=self._shared_prompt_tokens,
            packed=model.packs,
        )[model.place if alone else model.cell * model.shares + model.place]
        load_tokens(sample for rows in mine for row in rows for sample in row.samples)
        self.planned = len(mine)
        return mine

    def _policy_loss(
        self, forward: Callable[..., tuple[Tensor, Tensor]], batch: MicroBatch, proximal: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The loss of a micro-batch, and that and its sums over tokens in the order of a tally."""
        config = self._config
        reference = None if self._reference is None else self._reference(batch, config.temperature)
        logprobs, entropy = forward(batch, config.temperature, config.entropy)
        if proximal is None and self._loss.needs_proximal:
            proximal = logprobs.detach()
        tokens = LossTokens(
            logprobs,
            batch.behaviour,
            batch.advantages,
            batch.response,
            proximal,
            batch.versions if len(batch.versions) else None,
        )
        of_tokens, penalty = self._loss.loss(tokens), None
        if reference is not None:
            penalty = reference_kl(logprobs, reference)
            of_tokens = of_tokens + config.kl_coefficient * penalty
        loss = (batch.weights * of_tokens).sum()
        with torch.no_grad():
            log_ratio = logprobs - batch.behaviour
            ratio = log_ratio.exp()
            kl = log_ratio.expm1() - log_ratio  # of a small one `ratio` has too few digits
            low, high = self._loss.clipped(tokens)
            sums = [value.double().sum() for value in (low, high, kl, ratio, ratio.double().square(), entropy)]
            sums.append(torch.zeros_like(sums[0]) if penalty is None else penalty.double().sum())
            staleness = None if self.version is None else self.version - batch.versions
            by_staleness = sums_by_staleness(staleness, ratio, kl)
            told = torch.cat([torch.stack(sums), by_staleness]) * batch.counted
        return loss, torch.cat([loss.detach().double()[None], told])
