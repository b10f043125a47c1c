"""The environment of multi-turn tasks in a configuration: calls and their latency."""

from __future__ import annotations

import math
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from tailrace.fleetsim.workload.environment import Calls, EnvironmentWorkload, Latency
from tailrace.fleetsim.workload.lengths_config import Positive, Strict
from tailrace.fleetsim.workload.presets import CALLS

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# Far beyond every task (RobustRL: 50 tool calls). More must be a mistake, and would make each trajectory slow to draw.
CallCount = Annotated[int, Field(ge=0, le=1_000)]


class LatencyConfig(Strict):
    """Seconds of a call: lognormal, cut at a time-out; constant with sigma 0."""

    median: NotNegative
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
    counts: dict[CallCount, NotNegative] | None = None
    mean: NotNegative | None = None
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
