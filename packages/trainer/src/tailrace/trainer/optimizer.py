"""Gradient clipping, AdamW, Muon in float32 for the warm start of small models, and the learning rate of each step.

torch's own Muon orthogonalises in bfloat16, one matrix after the other. A step of 0.15 million parameters takes it 54 ms on
a CPU without bfloat16 units and 11 ms on one with them, where this takes 5 ms; only larger models gain by it (0.6 million: 18
against 32 ms).

A learning rate depends on the step's number alone, so a run that resumes goes on exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tailrace.trainer.config import TrainerConfig

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


def adamw(parameters: Iterable[Tensor], **options: Any) -> torch.optim.AdamW:
    """AdamW that updates all parameters in one kernel."""
    return torch.optim.AdamW(list(parameters), fused=True, **options)


def clip_gradients(gradients: list[Tensor], limit: float, *, copies: int | Tensor) -> float:
    """Scale gradients in place so that the 2-norm of all ranks' together is at most `limit`. Collective.

    Args:
        gradients: this rank's shards.
        limit: the norm; 0 for none.
        copies: how many ranks have the same shards; or, as a tensor, of each gradient.

    Returns:
        The norm before. If it is not finite, gradients are as they were.
    """
    squares = (torch.stack(torch._foreach_norm(gradients)).double().square() / copies).sum()
    dist.all_reduce(squares)  # over all ranks, so that rounding cannot let cells drift apart
    norm = float(squares.sqrt())
    if 0 < limit < norm < float("inf"):
        torch._foreach_mul_(gradients, limit / norm)
    return norm


def orthogonalised(matrices: Tensor) -> Tensor:
    """Approximations of the nearest semi-orthogonal matrices by five Newton-Schulz steps (Jordan et al. 2024).

    Args:
        matrices: matrices of one shape, ``[batch, rows, columns]``.
    """
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Updates by orthogonalised Nesterov momentum. Matrices of one shape are updated together.

    Args:
        matrices: whole two-dimensional parameters; a shard would be orthogonalised wrongly.
        lr: learning rate; for a matrix with more rows than columns it is multiplied by the square root of their ratio.
        momentum: decay of the running mean of gradients.
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    def step(self, closure: Any = None) -> None:
        """Update all matrices."""
        del closure
        with torch.no_grad():
            self._update()

    def _update(self) -> None:
        for group in self.param_groups:
            shapes: dict[Any, list[Tensor]] = {}
            for matrix in group["params"]:
                shapes.setdefault(matrix.shape, []).append(matrix)
            for (rows, columns), matrices in shapes.items():
                gradient = torch.stack([matrix.grad for matrix in matrices])
                mean = self.state[matrices[0]].setdefault("momentum", torch.zeros_like(gradient))
                mean.lerp_(gradient, 1 - group["momentum"])
                update = orthogonalised(gradient.lerp(mean, group["momentum"]))
                scale = group["lr"] * max(1.0, rows / columns) ** 0.5
                for matrix, change in zip(matrices, update, strict=True):
                    matrix.add_(change, alpha=-scale)


class MuonWithAdamW:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms, under one learning rate.

    Args:
        parameters: the parameters by Hugging Face name.
        betas: AdamW's betas.
        weight_decay: AdamW's weight decay.
        muon_lr_scale: Muon's learning rate as a multiple of AdamW's.
    """

    def __init__(
        self, parameters: dict[str, Tensor], *, betas: tuple[float, float], weight_decay: float, muon_lr_scale: float
    ) -> None:
        inside = {name: p for name, p in parameters.items() if p.ndim == 2 and ".layers." in name}
        rest = [p for name, p in parameters.items() if name not in inside]
        self._muon = Muon(inside.values())
        self._adamw = adamw(rest, betas=betas, weight_decay=weight_decay)
        for group in self._muon.param_groups:
            group["lr_scale"] = muon_lr_scale

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of AdamW and of Muon. A group's ``lr_scale`` multiplies the learning rate."""
        return [*self._adamw.param_groups, *self._muon.param_groups]

    def step(self) -> None:
        """Update all parameters."""
        self._muon.step()
        self._adamw.step()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self._muon.zero_grad()
        self._adamw.zero_grad()


def learning_rate(config: TrainerConfig, step: int) -> float:
    """The learning rate of an optimizer step.

    It rises linearly over `warmup_steps`, stays at `lr` for `lr_stable_steps`, falls to `lr_min` over `lr_decay_steps` and
    stays there; ``"constant"`` stays at `lr`.

    Args:
        config: the schedule.
        step: how many steps came before it.
    """
    warmup = config.warmup_steps
    begins = warmup + config.lr_stable_steps
    if config.lr_schedule == "constant" or step < begins:
        return config.lr * min(1.0, (step + 1) / max(1, warmup))
    done = min(1.0, (step - begins) / config.lr_decay_steps)
    left = 1.0 - done if config.lr_schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.lr_min + (config.lr - config.lr_min) * left
