"""A length as decimal digits with leading zeros, and what probabilities digit by digit say of it.

Digits of equal number sort as the numbers do. So the probability of more than a given number is a sum over the first digit that
is greater, and a quantile is found by walking down: at each place the digit at which the probabilities pass it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

NextDigit = Callable[[Tensor], Tensor]
"""Digits [n, places so far] that were chosen, to log-probabilities [n, 10] of the next."""


def as_digits(numbers: Tensor, places: int) -> Tensor:
    """Digits [n, places] of whole numbers [n], which have at most so many."""
    powers = 10 ** torch.arange(places - 1, -1, -1)
    return numbers[:, None] // powers % 10


def log_likelihood(logprobs: Tensor, digits: Tensor, cut: Tensor) -> Tensor:
    """ln P(number), or ln P(at least number) where it was cut.

    Args:
        logprobs: [n, places, 10] of each place's digit, given those before it in `digits`.
        digits: [n, places].
        cut: [n] booleans.

    Returns:
        [n].
    """
    own = logprobs.gather(2, digits[..., None])[..., 0]
    before = own.cumsum(1) - own
    greater = torch.arange(10) > digits[..., None]
    # A digit 9 has none above it: the smallest finite number, since the gradient of -inf is no number.
    above = logprobs.masked_fill(~greater, torch.finfo(logprobs.dtype).min).logsumexp(2)
    exactly = own.sum(1)
    at_least = torch.cat([before + above, exactly[:, None]], dim=1).logsumexp(1)
    return torch.where(cut, at_least, exactly)


def quantile(next_digit: NextDigit, shares: Tensor, places: int) -> Tensor:
    """The numbers that a given share of the probability does not exceed, [n] float64, between whole ones by the share within.

    Args:
        next_digit: the model.
        shares: [n] in (0, 1).
        places: of the number.
    """
    left = shares.double().clone()
    digits = torch.zeros(len(shares), 0, dtype=torch.long)
    for _ in range(places):
        passed = next_digit(digits).double().softmax(1).cumsum(1)
        chosen = (passed < left[:, None]).sum(1).clamp(max=9)
        below = torch.where(chosen > 0, passed.gather(1, (chosen - 1).clamp(min=0)[:, None])[:, 0], 0.0)
        within = passed.gather(1, chosen[:, None])[:, 0] - below
        left = ((left - below) / within.clamp(min=1e-12)).clamp(0.0, 1.0)
        digits = torch.cat([digits, chosen[:, None]], dim=1)
    powers = 10 ** torch.arange(places - 1, -1, -1)
    return (digits * powers).sum(1).double() + left
