"""Trains a network until its steps or its seconds are used up, and keeps the best so far.

plan: all epochs ─► a few steps, timed ─► as many steps as there is time for ─► every so often: held-back loss ─► the best
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tailrace.ranker.methods import Setting

LossOf = Callable[[Tensor, bool], Tensor]
"""Rows of the examples, and whether the network learns from them (or is measured on them), to a scalar."""

_TIMED_STEPS = 3
_LOOKS = 20  # at the held-back loss
_MARGIN = 0.85  # of the time that is left: looks and the restoring take some
_LEAST_HELD = 8
_HELD = 0.1
_WARM_UP = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train.

    Args:
        name: for progress.
        epochs: most of them.
        batch: rows of a step.
        lr: highest learning rate; rises over the first tenth of the steps, then falls as a cosine to 0.
        weight_decay: AdamW's.
    """

    name: str
    epochs: int
    batch: int
    lr: float
    weight_decay: float = 0.05


def fit_network(network: nn.Module, count: int, loss_of: LossOf, plan: Plan, setting: Setting) -> None:
    """Train a network in place, on `count` rows. It ends in evaluation mode with the weights of the lowest held-back loss.

    With fewer than 80 rows none are held back, and the last weights are taken. The same seed gives the same weights as long as
    the deadline does not end the training: only then does the number of steps depend on the time that they take.
    """
    drawn = torch.Generator().manual_seed(setting.seed)
    order = torch.randperm(count, generator=drawn)
    held = order[: int(_HELD * count)] if int(_HELD * count) >= _LEAST_HELD else order[:0]
    learn = order[len(held) :]
    batches = math.ceil(len(learn) / plan.batch)
    steps = plan.epochs * batches
    optimizer = torch.optim.AdamW(
        [weight for weight in network.parameters() if weight.requires_grad], lr=plan.lr, weight_decay=plan.weight_decay
    )
    best: tuple[float, dict[str, Any] | None] = math.inf, None
    slowest, began, step = 0.0, setting.deadline.now(), 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setting.seed)
        while step < steps and (step == 0 or setting.deadline.allows(slowest)):
            if step % batches == 0:
                learn = learn[torch.randperm(len(learn), generator=drawn)]
            rows = learn[step % batches * plan.batch : (step % batches + 1) * plan.batch]
            network.train()
            loss = _step(network, optimizer, loss_of(rows, True), plan.lr * _rate(step, steps))
            step += 1
            now = setting.deadline.now()
            took, began = now - began, now
            slowest = max(slowest, took)
            if step == _TIMED_STEPS:  # the first ones load libraries
                steps = min(steps, step + int(_MARGIN * setting.deadline.left_s / max(took, 1e-9)))
            if step >= steps or step % max(1, steps // _LOOKS) == 0:
                best = _looked(network, loss_of, held, best)
                setting.progress({"method": plan.name, "phase": "step", "step": step, "steps": steps, "loss": loss})
                began = setting.deadline.now()
    if best[1] is not None:
        network.load_state_dict(best[1])
    network.eval()


def _step(network: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, lr: float) -> float:
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad()
    if loss.requires_grad:  # a batch may hold nothing to compare
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    return float(loss.detach())


def _looked(
    network: nn.Module, loss_of: LossOf, held: Tensor, best: tuple[float, dict[str, Any] | None]
) -> tuple[float, dict[str, Any] | None]:
    if not len(held):
        return best
    network.eval()
    with torch.no_grad():
        loss = float(loss_of(held, False))
    return (loss, copy.deepcopy(network.state_dict())) if loss < best[0] else best


def _rate(step: int, steps: int) -> float:
    warm = max(1, round(_WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warm) / max(1, steps - warm))))
