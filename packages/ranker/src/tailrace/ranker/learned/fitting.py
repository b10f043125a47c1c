"""Trains a network until its steps or its seconds are used up, and keeps the best so far.

plan: all epochs ─► a few steps, timed ─► as many steps as there is time for ─► every so often: held-back loss ─► the best
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tailrace.ranker.methods import Setting
from tailrace.ranker.prediction import Prediction

LossOf = Callable[[Tensor, bool], Tensor]
"""Rows of the examples, and whether the network learns from them (or is measured on them), to a scalar, their mean."""

UPDATE_EPOCHS, UPDATE_RATE = 0.25, 0.3
"""Parts of a training's epochs and rate that an update has."""
_TIMED_STEPS = 3
_LOOKS = 20  # at the held-back loss, at most
_PASSES = 3  # of a row that is learned, beside one of a row that is looked at: a backward pass takes two forward ones
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
        batch_tokens: most tokens, padding included, that are computed at once; 0: no limit. A step of more adds up the
            gradients of its parts, and pairs or lists of prompts are those within a part.
        steps: most of them; 0: as many as the epochs have.
        faster: what is trained at another rate than `lr`, by the beginning of its name.
        faster_by: times the rate.
    """

    name: str
    epochs: int
    batch: int
    lr: float
    weight_decay: float = 0.05
    batch_tokens: int = 0
    steps: int = 0
    faster: str = ""
    faster_by: float = 1.0


def parts(rows: Tensor, sizes: Sequence[int], batch_tokens: int) -> list[Tensor]:
    """The rows in parts whose padded tokens do not exceed `batch_tokens`; a row of more is a part by itself.

    Args:
        rows: [n], of the examples.
        sizes: tokens of each example.
        batch_tokens: tokens; 0: one part.
    """
    if not batch_tokens:
        return [rows] if len(rows) else []
    found: list[list[int]] = []
    widest = 0
    for row in rows.tolist():
        widest = max(widest, sizes[row])
        if not found or widest * (len(found[-1]) + 1) > batch_tokens:
            found.append([])
            widest = sizes[row]
        found[-1].append(row)
    return [torch.tensor(part) for part in found]


def by_parts(
    rows: Sequence[Sequence[int]], batch_tokens: int, of_part: Callable[[list[int]], Sequence[Prediction]]
) -> list[Prediction]:
    """One prediction for each row, in their order, computed on rows of similar size together.

    Args:
        rows: tokens of each prompt.
        batch_tokens: see `parts`.
        of_part: predicts some rows, by their places.
    """
    order = sorted(range(len(rows)), key=lambda at: len(rows[at]))  # batches without much padding
    found: dict[int, Prediction] = {}
    with torch.inference_mode():
        for part in parts(torch.tensor(order), [len(row) for row in rows], batch_tokens):
            places = part.tolist()
            found.update(zip(places, of_part(places), strict=True))
    return [found[at] for at in range(len(rows))]


def fit_network(network: nn.Module, sizes: Sequence[int], loss_of: LossOf, plan: Plan, setting: Setting) -> None:
    """Train a network in place. It ends in evaluation mode with the weights of the lowest held-back loss.

    With fewer than 80 rows none are held back, and the last weights are taken. The same seed gives the same weights as long as
    the deadline does not end the training: only then does the number of steps depend on the time that they take.

    Args:
        network: what of it requires gradients is trained.
        sizes: tokens of each row.
        loss_of: of some rows.
        plan: how to train.
        setting: seed, deadline and progress.
    """
    count = len(sizes)
    drawn = torch.Generator().manual_seed(setting.seed)
    order = torch.randperm(count, generator=drawn)
    held = order[: int(_HELD * count)] if int(_HELD * count) >= _LEAST_HELD else order[:0]
    learn = order[len(held) :]
    batches = math.ceil(len(learn) / plan.batch)
    apart = math.ceil(len(held) / (_PASSES * plan.batch))  # so many steps take as long as a look
    steps = min(plan.epochs * batches, plan.steps) if plan.steps else plan.epochs * batches
    optimizer = _optimizer(network, plan)
    best: tuple[float, dict[str, Tensor] | None] = math.inf, None
    slowest, began, step = 0.0, setting.deadline.now(), 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setting.seed)
        while step < steps and (step == 0 or setting.deadline.allows(slowest)):
            if step % batches == 0:
                learn = learn[torch.randperm(len(learn), generator=drawn)]
            rows = learn[step % batches * plan.batch : (step % batches + 1) * plan.batch]
            network.train()
            loss = _step(network, optimizer, loss_of, parts(rows, sizes, plan.batch_tokens), _rate(step, steps))
            step += 1
            now = setting.deadline.now()
            took, began = now - began, now
            slowest = max(slowest, took)
            if step == _TIMED_STEPS:  # the first ones load libraries
                steps = int(min(steps, step + _MARGIN * setting.deadline.left_s / max(took, 1e-9)))
            if step >= steps or step % max(apart, steps // _LOOKS, 1) == 0:
                best = _looked(network, loss_of, parts(held, sizes, plan.batch_tokens), best)
                setting.progress({"method": plan.name, "phase": "step", "step": step, "steps": steps, "loss": loss})
                began = setting.deadline.now()
    if best[1] is not None:
        with torch.no_grad():
            for name, weight in _trained(network):
                weight.copy_(best[1][name])
    network.eval()


def first_step_s(network: nn.Module, sizes: Sequence[int], loss_of: LossOf, plan: Plan, setting: Setting) -> float:
    """About how many seconds one step takes: three times as many as the losses of the first rows take. Nothing is learned.

    Args:
        network, sizes, loss_of, plan, setting: as `fit_network` gets them.
    """
    began = setting.deadline.now()
    network.eval()
    with torch.no_grad():
        for part in parts(torch.arange(min(plan.batch, len(sizes))), sizes, plan.batch_tokens):
            loss_of(part, False)
    return 3 * (setting.deadline.now() - began)


def _optimizer(network: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    slow = [weight for name, weight in _trained(network) if not (plan.faster and name.startswith(plan.faster))]
    fast = [weight for name, weight in _trained(network) if plan.faster and name.startswith(plan.faster)]
    groups = [{"params": slow, "times": 1.0}, {"params": fast, "times": plan.faster_by}]
    return torch.optim.AdamW([each for each in groups if each["params"]], lr=plan.lr, weight_decay=plan.weight_decay)


def _trained(network: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]


def _step(
    network: nn.Module, optimizer: torch.optim.Optimizer, loss_of: LossOf, rows: list[Tensor], rate: float
) -> float:
    """One step on the mean of the losses of all rows; returns it. Only one part's graph exists at a time."""
    for group in optimizer.param_groups:
        group["lr"] = optimizer.defaults["lr"] * group["times"] * rate
    optimizer.zero_grad()
    count, total = sum(map(len, rows)), 0.0
    for part in rows:
        loss = loss_of(part, True) * (len(part) / count)
        total += float(loss.detach())
        if loss.requires_grad:  # a part may hold nothing to compare
            loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    return total


def _looked(
    network: nn.Module, loss_of: LossOf, held: list[Tensor], best: tuple[float, dict[str, Tensor] | None]
) -> tuple[float, dict[str, Tensor] | None]:
    if not held:
        return best
    network.eval()
    with torch.no_grad():
        loss = sum(float(loss_of(part, False)) * len(part) for part in held) / sum(map(len, held))
    return (loss, {name: weight.detach().clone() for name, weight in _trained(network)}) if loss < best[0] else best


def _rate(step: int, steps: int) -> float:
    warm = max(1, round(_WARM_UP * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warm) / max(1, steps - warm))))
