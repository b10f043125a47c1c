"""How long a class of trajectories takes on a number of replicas (StreamRL, section 5.3, equations 1 and 2)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeVar

from tailrace.contracts import TailraceError
from tailrace.repack.errors import NothingFitsError, UnmeasuredError

StepLatency = Callable[[int], float]
"""Seconds of one decoding step of a batch of so many trajectories, PTL(BS) in the paper."""
MaxBatch = Callable[[float], int]
"""Most trajectories of a length, in tokens, whose KV cache a replica holds at once."""

_Asked = TypeVar("_Asked", int, float)
_NARROW = 1e-12  # share of a time: two steps of a replica are further apart


class Decoding:
    """The profile of one kind of replica. Each figure is asked for once, and checked.

    Args:
        step_latency_s: see `StepLatency`.
        max_batch: see `MaxBatch`.
    """

    def __init__(self, step_latency_s: StepLatency, max_batch: MaxBatch) -> None:
        self._step_latency_s, self._max_batch = step_latency_s, max_batch
        self._steps: dict[int, float] = {}
        self._largest: dict[float, int] = {}

    def step_s(self, batch: int) -> float:
        """Seconds of a decoding step.

        Raises:
            UnmeasuredError: the profile does not know this size.
        """
        found = self._steps.get(batch)
        if found is None:
            found = self._steps[batch] = asked(
                self._step_latency_s,
                batch,
                f"step latency for a batch of {batch}",
                "a finite number of seconds above 0",
            )
            if not 0 < found < math.inf:
                raise UnmeasuredError(
                    f"found a step latency of {found!r} s for a batch of {batch}, expected a finite number above 0"
                )
        return found

    def largest(self, length: float) -> int:
        """Most trajectories of a length in one batch.

        Raises:
            NothingFitsError: not even one fits.
            UnmeasuredError: the profile does not know.
        """
        found = self._largest.get(length)
        if found is None:
            found = self._largest[length] = int(
                asked(self._max_batch, length, f"largest batch for {length:g} tokens", "a whole number")
            )
        if found < 1:
            raise NothingFitsError(
                f"found a largest batch of {found} for trajectories of {length:g} tokens, expected room for at least 1"
            )
        return found

    def time_s(self, count: int, length: float, longest: float = 0.0) -> float:
        """Seconds for `count` trajectories of a length on one replica: in batches, one after the other (equation 2).

        Args:
            count: at least 1.
            length: tokens of each.
            longest: tokens of the longest, which no order of batches makes faster.
        """
        batch = min(count, self.largest(length))
        step_s = self.step_s(batch)
        return max(step_s * length * -(-count // batch), step_s * longest)

    def within(self, count: int, length: float, longest: float) -> Callable[[float], int]:
        """How many trajectories, up to `count`, one replica generates within a number of seconds: `time_s` the other way.

        A larger batch is taken to be no faster in a step than a smaller one.
        """
        largest = min(count, self.largest(length))
        tokens = max(length, longest)
        one_round = list(accumulate((self.step_s(batch) * tokens for batch in range(1, largest + 1)), max))
        round_s = self.step_s(largest) * length

        def trajectories(seconds: float) -> int:
            fit = bisect_right(one_round, seconds)
            return fit if fit < largest else min(count, largest * max(1, math.floor(seconds / round_s)))

        return trajectories


def asked(profile: Callable[[_Asked], float], about: _Asked, what: str, expected: str) -> float:
    """A profile's answer.

    Raises:
        UnmeasuredError: it raised a plain error, or answered what is no number.
    """
    try:
        found = profile(about)
    except TailraceError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UnmeasuredError(f"found no {what} ({said}), expected {expected}") from error
    try:
        number = float(found)
    except (TypeError, ValueError):
        raise UnmeasuredError(f"found {found!r} as {what}, expected {expected}") from None
    if math.isnan(number):
        raise UnmeasuredError(f"found {found!r} as {what}, expected {expected}")
    return number


def fill(
    kinds: Sequence[Decoding], left_s: Sequence[float], count: int, length: float, longest: float = 0.0
) -> tuple[float, list[int]]:
    """The least time in which unequal replicas generate a class together, and how many trajectories each takes at most.

    Args:
        kinds: the profile of each replica, at least one.
        left_s: seconds for which each is still busy.
        count: trajectories of the class, at least 1.
        length: tokens of each.
        longest: see `Decoding.time_s`.
    """
    inverse = {kind: kind.within(count, length, longest) for kind in set(kinds)}
    replicas = [(inverse[kind], busy) for kind, busy in zip(kinds, left_s, strict=True)]
    spans = list(zip(kinds, left_s, strict=True))
    # Each of these does: one replica takes all, or all take as many.
    alone_s = min(busy + kind.time_s(count, length, longest) for kind, busy in spans)
    evenly_s = max(busy + kind.time_s(-(-count // len(spans)), length, longest) for kind, busy in spans)
    low, high = 0.0, min(alone_s, evenly_s) * (1 + 1e-9)
    while high - low > high * _NARROW:
        middle = (low + high) / 2
        if sum([within(middle - busy) for within, busy in replicas if middle > busy]) >= count:
            high = middle
        else:
            low = middle
    counts = [within(high - busy) if high > busy else 0 for within, busy in replicas]
    times = [
        busy + kind.time_s(taken, length, longest) for (kind, busy), taken in zip(spans, counts, strict=True) if taken
    ]
    return max(times), counts
