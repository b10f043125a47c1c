"""How long replicas take to generate: a batch, or a class of trajectories on a number of replicas (StreamRL, section 5.3)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from typing import TypeVar

from tailrace.contracts import TailraceError
from tailrace.repack.errors import NothingFitsError, UnmeasuredError
from tailrace.repack.lpt import check_count, checked_lengths
from tailrace.repack.throughput import ThroughputModel


def batch_time_s(
    lengths: Sequence[int],
    replicas: int,
    model: ThroughputModel,
    slots: int | None = None,
    kv_tokens: int | None = None,
) -> float:
    """Seconds until the last of some equal replicas, free at first, has generated its part of a batch.

    The responses are dealt out in turn, longest first. A replica starts the longest that waits whenever a slot of its decode
    batch is free and, where its KV cache has a limit, holds it beside all that run, each with its whole length: none is ever
    preempted. It holds the keys and values of the tokens that it has generated; prompts are not counted.

    Args:
        lengths: response tokens of each trajectory, whole numbers of at least 1.
        replicas: at least 1.
        model: the cost of a step, with the KV cache counted in tokens.
        slots: trajectories that a replica decodes together; None: no limit.
        kv_tokens: tokens that its KV cache holds; None: no limit.

    Returns:
        Seconds; infinite if the longest response does not fit the KV cache.

    Raises:
        LoadError: there are no lengths, or a value is out of its range.
    """
    checked_lengths(lengths, "lengths")
    check_count("replicas", replicas)
    for name, limit in (("slots", slots), ("kv_tokens", kv_tokens)):
        if limit is not None:
            check_count(name, limit)
    order = sorted(lengths, reverse=True)
    if kv_tokens is None:
        # Of each deal the first replica has the longest, so no other ends later.
        return _alone_s(order[::replicas], model, slots, math.inf)
    if order[0] > kv_tokens:
        return math.inf
    # Shorter ones may run more at once, whose steps take longer: each replica may be the last.
    parts = (order[replica::replicas] for replica in range(min(replicas, len(order))))
    return max(_alone_s(part, model, slots, kv_tokens) for part in parts)


def batch_like(lengths: Sequence[int], trajectories: int) -> Sequence[int]:
    """`trajectories` lengths at equal distances in the distribution of the last ones; empty if there are none of either."""
    known = sorted(max(1, length) for length in lengths[-trajectories:]) if trajectories else []
    if not known:
        return ()
    return [known[number * len(known) // trajectories] for number in range(trajectories)]


def _alone_s(queue: Sequence[int], model: ThroughputModel, slots: int | None, room: float) -> float:
    """Seconds of one replica for a queue of responses, each of which fits."""
    waiting = deque(queue)
    running: list[tuple[int, int]] = []  # the step after which it ends, and its tokens then
    seconds, step, kv_tokens, reserved = 0.0, 0, 0, 0
    while waiting or running:
        while waiting and (slots is None or len(running) < slots) and reserved + waiting[0] <= room:
            length = waiting.popleft()
            reserved += length
            heappush(running, (step + length, length))
        ends, length = heappop(running)
        steps, count = ends - step, len(running) + 1
        if steps:
            # The cache grows by `count` with each step, so half a batch more than at the first on average.
            mean_kv = kv_tokens + count * (steps - 1) / 2
            seconds += steps * model.step_latency_s(mean_kv, count)
            kv_tokens += count * steps
            step = ends
        kv_tokens -= length
        reserved -= length
    return seconds


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
