import math

import pytest
import torch

from tailrace.trainer.grpo import clipped_surrogate


def test_worked_by_hand():
    # clip range [0.8, 1.28]. ratio = exp(new - old); loss = -min(r A, clip(r) A); gradient by log-probability is
    # -r A where r A is the smaller, and 0 where the clip is.
    #  r     A    r A    clip(r) A   loss    clipped  gradient
    #  1.0   1    1.0    1.0         -1.0    no       -1.0
    #  1.25  1    1.25   1.25        -1.25   no       -1.25   (1.2 would have clipped it: clip-higher)
    #  1.5   1    1.5    1.28        -1.28   yes       0
    #  0.5   1    0.5    0.8         -0.5    no       -0.5
    #  0.5  -1   -0.5   -0.8         +0.8    yes       0
    #  1.5  -1   -1.5   -1.28        +1.5    no       +1.5
    #  0.9  -2   -1.8   -1.8         +1.8    no       +1.8
    ratios = [1.0, 1.25, 1.5, 0.5, 0.5, 1.5, 0.9]
    advantages = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -2.0])
    behaviour = torch.full((7,), -1.0)
    logprobs = torch.tensor([math.log(ratio) - 1.0 for ratio in ratios], requires_grad=True)
    result = clipped_surrogate(logprobs, behaviour, advantages, clip_low=0.2, clip_high=0.28)
    assert result.loss.tolist() == pytest.approx([-1.0, -1.25, -1.28, -0.5, 0.8, 1.5, 1.8])
    assert result.clipped.tolist() == [False, False, True, False, True, False, False]
    assert result.ratio.tolist() == pytest.approx(ratios)
    # r - 1 - log r: for 1.5, 0.5 - 0.405465 = 0.094535; for 0.5, -0.5 + 0.693147 = 0.193147.
    assert result.kl[2].item() == pytest.approx(0.094535, abs=1e-5)
    assert result.kl[3].item() == pytest.approx(0.193147, abs=1e-5)
    result.loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-1.0, -1.25, 0.0, -0.5, 0.0, 1.5, 1.8])
