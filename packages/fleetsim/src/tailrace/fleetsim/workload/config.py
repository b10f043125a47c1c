"""Table ``[fleet.workload]`` of a configuration, read strictly.

    [fleet.workload]
    prompt = { median = 150, sigma = 0.4, cap = 2048 }
    response = [{ weight = 0.8, median = 2000, sigma = 0.8 }, { weight = 0.2, mean = 9000, sd = 2500 }]
    correlation = 0.5
    drift = [[0, 1.0], [100, 1.4]]
    environment = { calls = { mean = 2.5, max = 8 }, latency = { median = 2.0, sigma = 1.2, cap = 60.0 } }
    solve_rate = { mean = 0.5, spread = 1.0 }
    scoring = [{ kind = "code", median = 1.0, sigma = 0.8, endless = 0.05 }, { kind = "math", weight = 2, median = 0.02 }]

Other forms of lengths: ``"intern-s1-math"``, ``{ preset = "deepcoder-14b", scale = 0.5 }``, ``512``,
``{ quantiles = [[0.5, 465], [0.9, 1041], [0.99, 2711]], cap = 20000 }``. To replay a recorded run: ``trace = "file.jsonl"``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from tailrace.fleetsim.errors import WorkloadError
from tailrace.fleetsim.tables import Positive, Share, Strict, as_tuples
from tailrace.fleetsim.workload.drawn import Distributions, DrawnWorkload
from tailrace.fleetsim.workload.environment import EnvironmentConfig, LatencyConfig
from tailrace.fleetsim.workload.lengths import RESPONSES, Drift, Lengths, LengthsField
from tailrace.fleetsim.workload.replayed import ReplayedWorkload
from tailrace.fleetsim.workload.rewards import ScoringKind, ScoringKinds, SolveRate
from tailrace.fleetsim.workload.shapes import Lognormal
from tailrace.fleetsim.workload.workload import Workload
from tailrace.pipeline.config.fields import FilePath

Whole = Annotated[int, Field(ge=0)]


class DriftConfig(Strict):
    """Growth of responses over training: a factor for each version, or [version, factor] points."""

    per_version: Positive = 1.0
    points: Annotated[tuple[tuple[Whole, Positive], ...], BeforeValidator(as_tuples)] = ()

    @model_validator(mode="after")
    def _increasing(self) -> Self:
        versions = [version for version, _ in self.points]
        if self.points and self.per_version != 1.0:
            raise ValueError("per_version or points, not both")
        if any(a >= b for a, b in pairwise(versions)):
            raise ValueError("[version, factor] points with versions increasing")
        return self


def _as_drift(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"per_version": value}
    return {"points": value} if isinstance(value, (list, tuple)) else value


class SolveRateConfig(Strict):
    """How often samples are right: the mean, and the spread of the logit over prompts."""

    mean: Share = 0.5
    spread: Annotated[float, Field(ge=0, le=20)] = 1.0


class ScoringConfig(Strict):
    """Scores of one kind: lognormal seconds, and a share that never ends. Pool: ``[fleet.scoring.KIND]``, ``[reward.KIND]``."""

    kind: str
    median: Positive
    sigma: Annotated[float, Field(ge=0, le=10)] = 0.0
    correlation: Share = 0.0
    endless: Share = 0.0
    references: bool = False
    weight: Positive = 1.0


# Laminar's limit and the preset for it; unset response lengths are scaled from these.
_USUAL_LIMIT, _USUAL = 16_384, "lognormal"


def _scoring_kind(part: ScoringConfig) -> ScoringKind:
    return ScoringKind(part.kind, part.median, part.sigma, part.correlation, part.endless, part.references, part.weight)


class WorkloadConfig(Strict):
    """The workload of a simulated run. A trace replaces lengths and turns; everything else has a default.

    Args:
        prompt: prompt lengths; None: a median of 150 tokens.
        response: response lengths; None: the preset `lognormal`, scaled from a limit of 16,384 to the run's.
        correlation: intraclass correlation of response lengths in a group; None: the preset's, or 0.5.
        drift: factor on response lengths by version.
        environment: the environment of multi-turn tasks.
        solve_rate: how often samples are right; with a trace, for samples without a reward.
        reward_latency: seconds of scoring in addition to the fleet's `delays.reward_s`; None: 0.
        scoring: kinds of scores, in place of `reward_latency`; each waits for a worker of its pool.
        trace: a recorded run as JSON lines (see `traces`); the path is relative to the configuration file.
    """

    prompt: LengthsField | None = None
    response: LengthsField | None = None
    correlation: Share | None = None
    drift: Annotated[DriftConfig, BeforeValidator(_as_drift)] | None = None
    environment: EnvironmentConfig | None = None
    solve_rate: SolveRateConfig = SolveRateConfig()
    reward_latency: LatencyConfig | None = None
    scoring: Annotated[tuple[ScoringConfig, ...], BeforeValidator(as_tuples)] = ()
    trace: FilePath | None = None

    @model_validator(mode="after")
    def _trace_alone(self) -> Self:
        beside = ("prompt", "response", "correlation", "drift", "environment")
        given = [name for name in beside if getattr(self, name) is not None]
        if self.trace is not None and given:
            raise ValueError(f"trace, or {', '.join(given)}, not both: a trace has its own lengths and turns")
        if self.scoring and (self.trace is not None or self.reward_latency is not None):
            raise ValueError("scoring without trace and reward_latency: it says how long scores take")
        kinds = [part.kind for part in self.scoring]
        if len(set(kinds)) < len(kinds):
            raise ValueError("scoring with each kind once")
        return self

    def build(self, seed: int, max_tokens: int) -> Workload:
        """Build the workload.

        Args:
            seed: any whole number.
            max_tokens: most tokens of a response, at least 1.

        Raises:
            WorkloadError: lengths, cap and limit contradict each other, or the trace cannot be read or exceeds the limit.
        """
        solve_rate = SolveRate(self.solve_rate.mean, self.solve_rate.spread)
        reward_latency = None if self.reward_latency is None else self.reward_latency.latency
        if self.trace is not None:
            return ReplayedWorkload.read(
                self.trace, seed=seed, max_tokens=max_tokens, solve_rate=solve_rate, reward_latency=reward_latency
            )
        distributions = Distributions(
            prompt=Lengths(Lognormal(150, 0.4), cap=2048) if self.prompt is None else self.prompt.lengths,
            response=self._response(max_tokens),
            correlation=self._correlation,
            drift=Drift() if self.drift is None else Drift(self.drift.per_version, self.drift.points),
            solve_rate=solve_rate,
            environment=None if self.environment is None else self.environment.environment,
            reward_latency=reward_latency,
            scoring=ScoringKinds(tuple(map(_scoring_kind, self.scoring))) if self.scoring else None,
        )
        return DrawnWorkload(distributions, seed=seed, max_tokens=max_tokens)

    def _response(self, max_tokens: int) -> Lengths:
        if self.response is None:
            return Lengths(RESPONSES[_USUAL].lengths.shape, max_tokens / _USUAL_LIMIT)
        cap = self.response.cap
        if cap is not None and cap > max_tokens:
            raise WorkloadError(
                f"response lengths: found cap = {cap:,} above max_tokens = {max_tokens:,}, expected at most"
                f" {max_tokens:,}; leave the cap out, or raise max_tokens to {cap}"
            )
        return self.response.lengths

    @property
    def _correlation(self) -> float:
        if self.correlation is not None:
            return self.correlation
        preset = _USUAL if self.response is None else self.response.preset
        measured = None if preset is None else RESPONSES[preset].correlation
        return 0.5 if measured is None else measured
