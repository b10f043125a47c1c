"""When two rewards are the same: what differs by rounding alone, such as 0.1 + 0.2 and 0.3, says nothing."""

from __future__ import annotations

from collections.abc import Iterable

_RELATIVE = 2.0**-21
"""Four units in the last place of single precision, in which reward models compute: 1,000,000 and 1,000,001 differ."""

_ABSOLUTE = 1e-9
"""Rounding of sums that come out at 0, as 0.1 + 0.2 - 0.3 does."""


def same_rewards(rewards: Iterable[float]) -> bool:
    """Whether rewards are all equal but for rounding: the one notion of it, in advantages, filters, samplers and accuracy.

    Equal are none, one, or several of which the least and the greatest differ by at most 2 ** -21 of the larger magnitude, or
    by at most 1e-9.

    Args:
        rewards: finite numbers.
    """
    values = list(rewards)
    if not values:
        return True
    low, high = min(values), max(values)
    return low == high or high - low <= max(_ABSOLUTE, _RELATIVE * max(abs(low), abs(high)))
