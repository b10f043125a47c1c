"""The environment of a multi-turn task: number of calls, seconds of a call, and where calls cut the response."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from tailrace.fleetsim.tables import Positive, Seconds, Strict
from tailrace.fleetsim.workload.lengths import CALLS
from tailrace.fleetsim.workload.workload import Turns

# Far beyond every task (RobustRL: 50 tool calls). More must be a mistake, and would make each trajectory slow to draw.
CallCount = Annotated[int, Field(ge=0, le=1_000)]
_BISECTIONS = 100


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of a call: lognormal, cut at a time-out.

    Args:
        median_s: seconds.
        sigma: standard deviation of the natural logarithm; 0 for a constant.
        cap_s: a call that takes longer ends there.
    """

    median_s: float
    sigma: float = 0.0
    cap_s: float = math.inf

    def draw(self, generator: Random, count: int) -> list[float]:
        """Seconds of `count` calls, by Box-Muller as in `random_numbers`. A longer list begins with the shorter one."""
        median, sigma, cap, uniform = self.median_s, self.sigma, self.cap_s, generator.random
        exp, log, sqrt, cos, sin, turn = math.exp, math.log, math.sqrt, math.cos, math.sin, math.tau
        seconds: list[float] = []
        for _ in range(0, count, 2):
            radius = sigma * sqrt(-2.0 * log(1.0 - uniform()))
            angle = turn * uniform()
            first, second = median * exp(radius * cos(angle)), median * exp(radius * sin(angle))
            seconds += (first if first < cap else cap, second if second < cap else cap)
        del seconds[count:]
        return seconds

    @property
    def mean_s(self) -> float:
        """Mean seconds with the cap applied (the partial expectation of a lognormal)."""
        if self.sigma == 0.0 or self.median_s == 0.0:
            return min(self.cap_s, self.median_s)
        if self.cap_s == math.inf:
            return self.median_s * math.exp(0.5 * self.sigma**2)
        edge = math.log(self.cap_s / self.median_s) / self.sigma
        below = self.median_s * math.exp(0.5 * self.sigma**2) * _below(edge - self.sigma)
        return below + self.cap_s * (1.0 - _below(edge))


@dataclass(frozen=True, slots=True)
class Calls:
    """How often a trajectory calls the environment. A trajectory with n calls has n + 1 turns.

    Args:
        weights: (number of calls, weight) with increasing numbers; at least one weight is above 0.
    """

    weights: tuple[tuple[int, float], ...]
    _numbers: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _shares: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        total = sum(weight for _, weight in self.weights)
        shares = [share / total for share in accumulate(weight for _, weight in self.weights)]
        object.__setattr__(self, "_numbers", tuple(number for number, _ in self.weights))
        # The last share is 1 up to rounding; infinity makes sure that every draw is below it.
        object.__setattr__(self, "_shares", (*shares[:-1], math.inf))

    @classmethod
    def of(cls, weights: Mapping[int, float], most: int | None = None) -> Calls:
        """Calls from weights by their number. More than `most` calls count as `most`, where the task stops a trajectory."""
        clipped: dict[int, float] = {}
        for number, weight in weights.items():
            kept = number if most is None else min(number, most)
            clipped[kept] = clipped.get(kept, 0.0) + weight
        return cls(tuple(sorted(clipped.items())))

    @classmethod
    def around(cls, mean: float, least: int, most: int) -> Calls:
        """The maximum-entropy distribution on `least` ... `most` with this mean; its weights form a geometric sequence."""
        if mean <= least or mean >= most:
            return cls(((least if mean <= least else most, 1.0),))
        # Bisect over the logarithm of the ratio, between ratios that put all weight on one end.
        low, high = -60.0, 60.0
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            if cls(_geometric(middle, least, most)).mean < mean:
                low = middle
            else:
                high = middle
        return cls(_geometric(0.5 * (low + high), least, most))

    def draw(self, generator: Random) -> int:
        """Draw the number of calls of one trajectory."""
        return self._numbers[bisect(self._shares, generator.random())]

    @property
    def mean(self) -> float:
        """Mean number of calls."""
        return sum(number * weight for number, weight in self.weights) / sum(weight for _, weight in self.weights)


@dataclass(frozen=True, slots=True)
class EnvironmentWorkload:
    """Calls and their latency."""

    calls: Calls
    latency: Latency

    def turns(self, generator: Random, tokens: int) -> Turns:
        """Cut a response of `tokens` tokens into turns, at uniform random places; each turn has at least one token.

        A response with fewer tokens than turns has as many turns as tokens.
        """
        count = min(self.calls.draw(generator) + 1, tokens)
        if count == 1:
            return ((tokens, 0.0),)
        uniform, room = generator.random, tokens - count + 1
        cuts = sorted([int(uniform() * room) for _ in range(count - 1)])
        turns, before = [], 0
        for cut, seconds in zip(cuts, self.latency.draw(generator, count - 1), strict=True):
            turns.append((cut - before + 1, seconds))
            before = cut
        turns.append((room - before, 0.0))
        return tuple(turns)


def _geometric(log_ratio: float, least: int, most: int) -> tuple[tuple[int, float], ...]:
    # The largest weight is 1, so none overflows.
    top = most if log_ratio > 0 else least
    return tuple((number, math.exp(log_ratio * (number - top))) for number in range(least, most + 1))


def _below(score: float) -> float:
    return 0.5 * math.erfc(-score / math.sqrt(2.0))


# The environment of multi-turn tasks in a configuration: calls and their latency.


class LatencyConfig(Strict):
    """Seconds of a call: lognormal, cut at a time-out; constant with sigma 0."""

    median: Seconds
    sigma: Annotated[float, Field(ge=0, le=10)] = 0.0
    cap: Positive | None = None

    @model_validator(mode="after")
    def _below_the_cap(self) -> Self:
        if self.cap is not None and self.median > self.cap:
            raise ValueError(f"a median of at most the cap; {self.median:g} s is above {self.cap:g} s")
        return self

    @property
    def latency(self) -> Latency:
        """The distribution."""
        return Latency(self.median, self.sigma, math.inf if self.cap is None else self.cap)


class CallsConfig(Strict):
    """Number of calls in a trajectory, one fewer than its turns: a preset, counts, or a mean with its limits."""

    preset: str | None = None
    counts: dict[CallCount, Seconds] | None = None
    mean: Seconds | None = None
    min: CallCount = 0
    max: CallCount | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(way is not None for way in (self.preset, self.counts, self.mean)) != 1:
            raise ValueError("a preset, or counts such as { 1 = 4640, 2 = 18785 }, or mean with max")
        if self.preset is not None and self.preset not in CALLS:
            raise ValueError(f"a preset: {', '.join(sorted(CALLS))}")
        if self.counts is not None and not any(self.counts.values()):
            raise ValueError("counts with a weight above 0")
        if self.mean is None and self.min:
            raise ValueError("min only with mean")
        if self.mean is not None and (self.max is None or not self.min <= self.mean <= self.max):
            raise ValueError(f"mean with max, and a mean between min ({self.min}) and max")
        return self

    @property
    def calls(self) -> Calls:
        """The distribution. The task stops a trajectory after `max` calls."""
        if self.mean is not None:
            assert self.max is not None
            return Calls.around(self.mean, self.min, self.max)
        weights = CALLS[self.preset] if self.preset is not None else self.counts
        assert weights is not None
        return Calls.of(weights, self.max)


def _as_calls(value: Any) -> Any:
    if isinstance(value, str):
        return {"preset": value}
    if isinstance(value, int) and not isinstance(value, bool):
        return {"counts": {value: 1.0}}
    if not isinstance(value, dict):
        return value
    counts = {key: weight for key, weight in value.items() if str(key).isdecimal()}
    if counts:
        rest = {key: part for key, part in value.items() if key not in counts}
        return {"counts": _whole_keys(counts), **rest}
    if isinstance(value.get("counts"), dict):
        return {**value, "counts": _whole_keys(value["counts"])}
    return value


def _whole_keys(counts: dict[Any, Any]) -> dict[Any, Any]:
    """Convert keys to whole numbers, since keys of TOML and JSON are strings."""
    return {int(key) if isinstance(key, str) and key.isdecimal() else key: weight for key, weight in counts.items()}


class EnvironmentConfig(Strict):
    """The environment of a multi-turn task."""

    calls: Annotated[CallsConfig, BeforeValidator(_as_calls)]
    latency: LatencyConfig

    @property
    def environment(self) -> EnvironmentWorkload:
        """The environment."""
        return EnvironmentWorkload(self.calls.calls, self.latency.latency)
