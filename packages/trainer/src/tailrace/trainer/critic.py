"""What PPO's critic does beside the policy: its values make advantages of rewards, and it learns from the returns.

    samples ──► values, without gradient ──► advantages and returns of tokens ──► whitened over the batch ──► the policy
                                                   └──► value loss ──► its own optimizer steps

Values are those of the critic before the batch, also in later mini-batches and epochs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from tailrace.trainer.advantages import CriticAdvantages
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.layout import PackedRow, TrainingSample
from tailrace.trainer.microbatch import MicroBatch, to_tensors
from tailrace.trainer.sharded_model import ShardedModel, onloaded

_SMALLEST_VARIANCE = 1e-8
_SUMS = ("weight", "loss", "tokens", "clipped", "value", "return", "return_square", "error", "error_square")


class Estimates(NamedTuple):
    """What the critic made of a micro-batch before it learned from it: each ``[tokens]``, on the device."""

    values: Tensor
    advantages: Tensor
    returns: Tensor
    weighed: Tensor
    """Whether the token has a weight in the loss."""


def value_loss(values: Tensor, before: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """``max((v - R)^2, (clip(v, v_before - clip, v_before + clip) - R)^2) / 2`` for every token, and where the clipped one is
    the larger, so that the token has no gradient (PPO's reference implementation; Huang et al. 2022, detail 9).

    Args:
        values: of the critic as it is, ``[tokens]``; differentiable.
        before: of the critic before the batch.
        returns: what they are to become.
        clip: 0 does not clip.
    """
    plain = (values - returns).square()
    if not clip:
        return plain / 2, torch.zeros_like(plain, dtype=torch.bool)
    clipped = (values.clamp(before - clip, before + clip) - returns).square()
    return plain.maximum(clipped) / 2, clipped.detach() > plain.detach()


def whiten(advantages: Tensor, sums: Tensor) -> Tensor:
    """Advantages less their mean, divided by their standard deviation, that of a sample, over a batch.

    Args:
        advantages: of some tokens.
        sums: over the batch: how many they are, their sum and that of their squares, ``[3]``.
    """
    count, total, squares = sums.tolist()
    mean = total / max(1.0, count)
    variance = max(0.0, squares - count * mean * mean) / max(1.0, count - 1.0)
    return (advantages - mean) * (variance + _SMALLEST_VARIANCE) ** -0.5


class Critic:
    """The critic of a run, on this rank.

    Args:
        model: its model.
        config: the trainer's settings.
        micro_batches: this rank's micro-batches of samples; see `Gradients.micro_batches`.
        reference: log-probabilities of (micro-batch, temperature) under the model that training began with; None without.
        on_phase: called as each micro-batch begins "forward" and "backward", and an "optimizer" step begins.
        ended: called at the end of each micro-batch.
    """

    def __init__(
        self,
        model: ShardedModel,
        config: TrainerConfig,
        micro_batches: Callable[..., list[list[PackedRow]]],
        reference: Callable[[MicroBatch, float], Tensor] | None,
        on_phase: Callable[[str], None] = lambda _: None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        advantages = config.open_advantages()
        assert isinstance(advantages, CriticAdvantages)
        self.model, self._advantages, self._settings, self._config = model, advantages, config.critic, config
        self._micro_batches, self._reference = micro_batches, reference
        self._on_phase, self._ended = on_phase, ended
        self._sums = self._nothing()
        self._moved: dict[str, float] = {}

    @property
    def passes(self) -> int:
        """How often a batch goes through it: for its values, and to learn."""
        return 1 + self._settings.epochs

    @property
    def is_warm(self) -> bool:
        """Whether it has learned long enough for the policy to move."""
        return self.model.steps >= self._settings.warmup_steps

    def learn(self, batches: Sequence[Sequence[TrainingSample]]) -> tuple[dict[str, float], list[list[Tensor]]]:
        """Learn from the mini-batches of a batch, an optimizer step on each in every epoch. Collective.

        Returns:
            Metrics, the same on every rank but for seconds; and the advantages of each of this rank's micro-batches of each
            mini-batch.

        Raises:
            NonFiniteGradientError: a gradient is not finite. Optimizer steps before it have been made.
        """
        begun = time.perf_counter()
        planned = [self._micro_batches(samples, alone=False) for samples in batches]
        estimates = [self._estimate(mine) for mine in planned]
        if self._advantages.whiten:
            estimates = self._whitened(estimates)
        self._moved = {}
        total, norms = self._nothing(), []
        for _ in range(self._settings.epochs):
            for mine, before in zip(planned, estimates, strict=True):
                self.forget()
                self._add(mine, before)
                total += self._sums
                norms.append(self._step())
        metrics = self._means(total) | {"critic_grad_norm": sum(norms) / len(norms)}
        advantages = [[each.advantages for each in before] for before in estimates]
        return metrics | self._moved | {"critic_s": time.perf_counter() - begun}, advantages

    def add(self, samples: Sequence[TrainingSample], *, alone: bool) -> list[Tensor]:
        """Add the gradients of a part of a batch to those of its other parts, without an optimizer step.

        Args:
            samples: whole responses.
            alone: whether this cell computes all of them, see `Gradients.add`.

        Returns:
            The advantages of each of this rank's micro-batches.
        """
        mine = self._micro_batches(samples, alone=alone)
        before = self._estimate(mine)
        self._add(mine, before)
        return [each.advantages for each in before]

    def apply(self) -> dict[str, float]:
        """Do an optimizer step on the parts that were added. Returns metrics of all of them. Collective."""
        begun, sums, self._moved = time.perf_counter(), self._sums, {}
        norm = self._step()
        metrics = self._means(sums) | self._moved
        return metrics | {"critic_grad_norm": norm, "critic_s": time.perf_counter() - begun}

    def forget(self) -> None:
        """Drop what was added."""
        self.model.drop_gradients()
        self._sums = self._nothing()

    def _estimate(self, mine: Sequence[Sequence[PackedRow]]) -> list[Estimates]:
        """What it makes of this rank's micro-batches, as it is."""
        found = []
        for rows in mine:
            batch = to_tensors(rows, self.model.device, self.model.dtype, packed=self.model.packs)
            self._on_phase("forward")
            with torch.no_grad(), self.model.micro_batch(last=True) as forward:
                values = forward(batch, 1.0, False)[0]
            advantages, returns = self._of_tokens(rows, batch, values)
            of_tokens = advantages.to(batch.advantages), returns.to(batch.advantages)
            found.append(Estimates(values, *of_tokens, batch.weights > 0))
            self._ended()
        return found

    def _of_tokens(self, rows: Sequence[PackedRow], batch: MicroBatch, values: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages and returns of a micro-batch's tokens. Its samples' rewards are at their last tokens."""
        rewards = torch.zeros(len(values), dtype=torch.float64)
        if self._advantages.kl_coefficient and self._reference is not None:
            apart = batch.behaviour - self._reference(batch, self._config.temperature)
            rewards -= self._advantages.kl_coefficient * apart.double().cpu()
        samples = [sample for row in rows for sample in row.samples]
        sizes = [len(sample.trained) for sample in samples]
        advantages: list[float] = []
        returns: list[float] = []
        parts = zip(samples, rewards.split(sizes), values.double().cpu().split(sizes), strict=True)
        for sample, of_tokens, before in parts:
            of_tokens[-1] += sample.advantage
            ahead, goal = self._advantages.estimate(of_tokens.tolist(), before.tolist())
            advantages += ahead
            returns += goal
        return torch.tensor(advantages, dtype=torch.float64), torch.tensor(returns, dtype=torch.float64)

    def _whitened(self, estimates: Sequence[Sequence[Estimates]]) -> list[list[Estimates]]:
        """The estimates of a batch with advantages of mean 0 and variance 1 over all tokens of weight. Collective."""
        sums = torch.zeros(3, dtype=torch.float64, device=self.model.device)
        for each in (each for before in estimates for each in before):
            chosen = each.advantages.double()[each.weighed]
            sums += torch.stack([torch.ones_like(chosen).sum(), chosen.sum(), chosen.square().sum()])
        dist.all_reduce(sums, group=self.model.group)
        return [[each._replace(advantages=whiten(each.advantages, sums)) for each in before] for before in estimates]

    def _add(self, mine: Sequence[Sequence[PackedRow]], estimates: Sequence[Estimates]) -> None:
        """Add the gradients of the value loss of micro-batches, and its sums."""
        for number, (rows, before) in enumerate(zip(mine, estimates, strict=True)):
            batch = to_tensors(rows, self.model.device, self.model.dtype, packed=self.model.packs)
            self._on_phase("forward")
            with self.model.micro_batch(last=number == len(mine) - 1) as forward:
                values = forward(batch, 1.0, False)[0]
                of_tokens, clipped = value_loss(values, before.values, before.returns, self._settings.value_clip)
                loss = (batch.weights * of_tokens).sum()
                self._on_phase("backward")
                self.model.backward(loss)
            error = (before.returns - before.values).double()
            seen = (torch.ones_like(error), clipped, before.values, before.returns, before.returns.double().square())
            sums = [value.double().sum() for value in (*seen, error, error.square())]
            told = [batch.weights.double().sum(), loss.detach().double(), *(value * batch.counted for value in sums)]
            self._sums += torch.stack(told)
            self._ended()

    def _step(self) -> float:
        """Do an optimizer step on what was added. Returns the gradient's norm before clipping. Collective."""
        weight = self._sums[:1].clone()
        dist.all_reduce(weight, group=self.model.group)
        self._on_phase("optimizer")
        self.model.total_gradients(weight.item() or 1.0)
        with onloaded([self.model], self._config.offload) as moved:
            norm = self.model.apply_gradients(self.model.config.lr)
        self._moved = {name: self._moved.get(name, 0.0) + value for name, value in moved.items()}
        self._sums = self._nothing()
        return norm

    def _nothing(self) -> Tensor:
        return torch.zeros(len(_SUMS), dtype=torch.float64, device=self.model.device)

    def _means(self, sums: Tensor) -> dict[str, float]:
        """The metrics of sums of all ranks. Collective."""
        dist.all_reduce(sums, group=self.model.group)
        of = dict(zip(_SUMS, sums.tolist(), strict=True))
        tokens = max(1.0, of["tokens"])
        spread, left = (
            of[square] / tokens - (of[name] / tokens) ** 2
            for name, square in (("return", "return_square"), ("error", "error_square"))
        )
        return {
            "value_loss": of["loss"] / (of["weight"] or 1.0),
            "value_clip_fraction": of["clipped"] / tokens,
            "value_mean": of["value"] / tokens,
            "return_mean": of["return"] / tokens,
            "explained_variance": 1.0 - left / spread if spread > _SMALLEST_VARIANCE else 0.0,
        }
