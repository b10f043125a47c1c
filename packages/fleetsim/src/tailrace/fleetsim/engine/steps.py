"""The closed form of decode steps.

A batch of `n` trajectories that holds `K` tokens takes `fixed(n) + c * K` for its next step, and `K` grows by `n` with each. So
`m` steps take `m * (first_s + growth_s * (m - 1))` with `first_s = fixed(n) + c * K` and `growth_s = c * n / 2`.
"""

from __future__ import annotations

from math import sqrt


def steps_s(steps: int, first_s: float, growth_s: float) -> float:
    """Total seconds of the next `steps` steps."""
    return steps * (first_s + growth_s * (steps - 1))


def kv_token_s(running: int, kv: int, steps: int, seconds: float, growth_s: float) -> float:
    """Integral of the tokens in the KV cache over `steps` steps, in token-seconds.

    It is the sum of `(kv + running * k) * (first_s + 2 * growth_s * k)` for `k` below `steps`: the mean number of tokens times
    the total time, plus their covariance, since later steps have more tokens and take longer.

    Args:
        running: number of running trajectories.
        kv: tokens in the KV cache at the start.
        steps: number of steps.
        seconds: total seconds of the steps.
        growth_s: half the seconds by which each step is longer than the one before.
    """
    return (kv + 0.5 * running * (steps - 1)) * seconds + running * growth_s * steps * (steps * steps - 1) / 6.0


def steps_within(seconds: float, first_s: float, growth_s: float, most: int) -> int:
    """Number of complete steps after `seconds`, at most `most`: the inverse of `steps_s`, rounded down.

    `first_s >= growth_s` holds for every batch, because each of its trajectories has at least one token.
    """
    if seconds <= 0.0 or most <= 0:
        return 0
    linear = first_s - growth_s
    steps = min(int(2.0 * seconds / (linear + sqrt(linear * linear + 4.0 * growth_s * seconds))), most)
    # The root is rounded, but the result must agree exactly with `steps_s`, or a step would be counted twice.
    while steps < most and steps_s(steps + 1, first_s, growth_s) <= seconds:
        steps += 1
    while steps and steps_s(steps, first_s, growth_s) > seconds:
        steps -= 1
    return steps
