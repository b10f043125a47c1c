"""Checks of a loss and of advantages on random tokens and rewards: what their base classes say holds."""

from __future__ import annotations

import math
import random

from tailrace.trainer.advantages import Advantages, CriticAdvantages
from tailrace.trainer.losses import Loss, LossTokens


def check_loss(loss: Loss, *, seeds: range = range(20)) -> None:
    """Check that a loss keeps what `Loss` says, on random tokens of several responses.

    Raises:
        AssertionError: it does not; the message has the seed.
    """
    import torch

    assert isinstance(loss, Loss), f"found a {type(loss).__name__}, expected a tailrace.trainer.losses.Loss"
    assert loss.normalisation in ("token", "sequence", "constant"), f"found normalisation = {loss.normalisation!r}"
    for seed in seeds:
        draw = torch.Generator().manual_seed(seed)
        response = torch.arange(4).repeat_interleave(3)[torch.randperm(12, generator=draw)]
        behaviour, proximal, logprobs = (-torch.rand(12, generator=draw, dtype=torch.float64) - 1 for _ in range(3))
        advantages = torch.randn(4, generator=draw, dtype=torch.float64)[response]
        logprobs.requires_grad_()
        versions = torch.randint(0, 5, (12,), generator=draw)
        tokens = LossTokens(
            logprobs, behaviour, advantages, response, proximal if loss.needs_proximal else None, versions
        )
        found, low_high = loss.loss(tokens), loss.clipped(tokens)
        assert found.shape == (12,), (
            f"seed {seed}: found losses of shape {tuple(found.shape)}, expected one for each token"
        )
        assert torch.equal(found, loss.loss(tokens)), f"seed {seed}: equal tokens have other losses: it keeps a state"
        assert all(mask.shape == (12,) and mask.dtype is torch.bool for mask in low_high), (
            f"seed {seed}: expected masks"
        )
        assert not (low_high[0] & low_high[1]).any(), f"seed {seed}: a token's ratio is too low and too high"
        found.sum().backward()
        gradient = logprobs.grad
        assert gradient is not None, f"seed {seed}: expected a gradient"
        assert gradient.isfinite().all(), f"seed {seed}: expected a finite gradient"
        assert not gradient[low_high[0] | low_high[1]].any(), f"seed {seed}: a token that is clipped has a gradient"
        if loss.streams:
            mine = response == 0
            before = proximal[mine] if loss.needs_proximal else None
            alone = LossTokens(
                logprobs[mine], behaviour[mine], advantages[mine], response[mine], before, versions[mine]
            )
            difference = float((loss.loss(alone) - found[mine]).abs().max())
            assert difference < 1e-9, (
                f"seed {seed}: a response's loss changes by {difference} without the others: streams"
            )


def check_advantages(advantages: Advantages | CriticAdvantages, *, seeds: range = range(20)) -> None:
    """Check that advantages keep what `Advantages` or `CriticAdvantages` says, on random groups or responses.

    Raises:
        AssertionError: they do not; the message has the seed.
    """
    if isinstance(advantages, CriticAdvantages):
        _check_critic_advantages(advantages, seeds)
        return
    assert isinstance(advantages, Advantages), f"found a {type(advantages).__name__}, expected Advantages"
    for seed in seeds:
        draw = random.Random(seed)
        groups = [group for group in range(4) for _ in range(4)]
        draw.shuffle(groups)
        rewards = [draw.choice([0.0, 0.3, 0.1 + 0.2, 1.0]) for _ in groups]
        found = advantages(groups, rewards)
        assert len(found) == len(groups), f"seed {seed}: found {len(found)} advantages, expected {len(groups)}"
        assert all(map(math.isfinite, found)), f"seed {seed}: expected finite advantages"
        assert found == advantages(groups, rewards), (
            f"seed {seed}: equal rewards have other advantages: it keeps a state"
        )
        assert not any(advantages(groups, [0.5] * len(groups))), f"seed {seed}: rewards that are all equal say nothing"
        if not advantages.needs_batch:
            mine = [place for place, group in enumerate(groups) if group == groups[0]]
            alone = advantages([groups[place] for place in mine], [rewards[place] for place in mine])
            same = all(abs(found[place] - value) < 1e-9 for place, value in zip(mine, alone, strict=True))
            assert same, f"seed {seed}: a group's advantages change without the other groups: needs_batch"


def _check_critic_advantages(advantages: CriticAdvantages, seeds: range) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        size = draw.randint(1, 9)
        rewards, values = ([draw.gauss(0, 1) for _ in range(size)] for _ in range(2))
        found = advantages.estimate(rewards, values)
        assert all(len(each) == size for each in found), (
            f"seed {seed}: expected advantages and returns of {size} tokens"
        )
        assert all(math.isfinite(value) for each in found for value in each), f"seed {seed}: expected finite numbers"
        assert found == advantages.estimate(rewards, values), (
            f"seed {seed}: equal rewards have other advantages: it keeps a state"
        )
        nothing = advantages.estimate([0.0] * size, [0.0] * size)
        assert not any(map(any, nothing)), f"seed {seed}: rewards and values of 0 say nothing"
