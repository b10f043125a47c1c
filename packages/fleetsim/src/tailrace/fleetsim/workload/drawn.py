"""A workload drawn from distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tailrace.fleetsim.errors import WorkloadError
from tailrace.fleetsim.workload.environment import EnvironmentWorkload, Latency
from tailrace.fleetsim.workload.lengths import P99, PER_SCORE, ZERO, Drift, Lengths
from tailrace.fleetsim.workload.random_numbers import RandomStream, draws, seed_of, stream
from tailrace.fleetsim.workload.rewards import ScoringKinds, SolveRate
from tailrace.fleetsim.workload.workload import Description, ModelledSample, Workload

_NO_DRIFT = Drift()
_EVEN_ODDS = SolveRate()


@dataclass(frozen=True, slots=True)
class Distributions:
    """The distributions of a drawn workload.

    Args:
        prompt: prompt lengths.
        response: response lengths, of all turns together.
        correlation: intraclass correlation of response lengths within a group, 0 to 1 (see `random_numbers`).
        drift: change of response lengths over training.
        solve_rate: how often samples are right.
        environment: the environment of multi-turn tasks; None for one turn.
        reward_latency: seconds of scoring; None for 0.
        scoring: kinds of scores with their seconds; None for one kind with `reward_latency`.
    """

    prompt: Lengths
    response: Lengths
    correlation: float = 0.5
    drift: Drift = _NO_DRIFT
    solve_rate: SolveRate = _EVEN_ODDS
    environment: EnvironmentWorkload | None = None
    reward_latency: Latency | None = None
    scoring: ScoringKinds | None = None


class DrawnWorkload(Workload):
    """Draws each group when it is asked for, and stores none.

    Args:
        distributions: the distributions to draw from.
        seed: any whole number.
        max_tokens: most tokens of a response. A response that is cut there counts as finished.

    Raises:
        WorkloadError: more than half of the prompts or responses would be cut.
    """

    def __init__(self, distributions: Distributions, *, seed: int, max_tokens: int) -> None:
        self.distributions, self.seed, self.max_tokens = distributions, seed, max_tokens
        response, prompt = distributions.response, distributions.prompt
        _check_response(response, distributions.drift.largest, max_tokens)
        _check_prompt(prompt)
        self._limit = int(response.limit(max_tokens))
        self._response, self._prompt, self._prompt_limit = response.table, prompt.table, prompt.limit()
        # Normal scores in units of the table's cells, so that a draw is one product and one sum.
        self._shared = math.sqrt(distributions.correlation) * PER_SCORE
        self._own = math.sqrt(1.0 - distributions.correlation) * PER_SCORE
        self._environment, self._latency = distributions.environment, distributions.reward_latency

    def group(self, index: int, samples: int, version: int = 0, draw: int | None = None) -> list[ModelledSample]:
        normals, uniforms = draws(self.seed, index, samples + 4)
        seed = seed_of(self.seed, index, draw)
        if seed != self.seed:
            own_normals, own_uniforms = draws(seed, index, samples + 4)
            normals[4:], uniforms[4:] = own_normals[4:], own_uniforms[4:]
        # The first four normal values belong to the group (two are spare), and so do the first four uniform values.
        centre = self._shared * normals[0] + ZERO
        prompt = self._prompt.tokens(normals[1], self._prompt_limit)
        solve_rate = self.distributions.solve_rate.of(normals[2])
        factor = self.distributions.drift.factor(version)
        own, limit, starts, slopes = self._own, self._limit, self._response.starts, self._response.slopes
        group = []
        for position in range(4, samples + 4):
            place = centre + own * normals[position]
            cell = int(place)
            length = factor * (starts[cell] + slopes[cell] * (place - cell))
            if length >= limit:
                tokens = limit
            elif length >= 1.5:
                tokens = int(length + 0.5)
            else:
                tokens = 1
            group.append(ModelledSample(prompt, ((tokens, 0.0),), 1.0 if uniforms[position] < solve_rate else 0.0))
        if self._environment is not None:
            generator = stream(seed, index, RandomStream.ENVIRONMENT)
            for sample in group:
                sample.turns = self._environment.turns(generator, sample.turns[0][0])
        if self._latency is not None:
            seconds = self._latency.draw(stream(seed, index, RandomStream.SCORING), samples)
            for sample, reward_s in zip(group, seconds, strict=True):
                sample.reward_s = reward_s
        if self.distributions.scoring is not None:
            prompts = stream(self.seed, index, RandomStream.SCORING)
            own_draw = stream(seed, index, RandomStream.SCORING) if seed != self.seed else None
            self.distributions.scoring.assign(prompts, group, own_draw)
        return group

    @property
    def turns(self) -> bool:
        return self._environment is not None

    def describe(self, version: int = 0) -> Description:
        parts = self.distributions
        response = parts.response.spread(self.max_tokens, parts.drift.factor(version))
        description = Description(parts.prompt.spread(), response)
        if parts.environment is None:
            return description
        calls = parts.environment.calls.mean
        return replace(description, calls=calls, environment_s=calls * parts.environment.latency.mean_s)


def _check_response(response: Lengths, factor: float, max_tokens: int) -> None:
    limit, median = response.limit(max_tokens), factor * response.table.at(0.0)
    if median > limit:
        grown = "" if factor == 1.0 else f" after a drift of {factor:g}"
        most = factor * response.table.at(P99)
        raise WorkloadError(
            f"response lengths: found a median of {median:,.0f} tokens{grown} and a limit of {limit:,.0f} (max_tokens ="
            f" {max_tokens:,}), so most would be cut; expected a limit of {math.ceil(median):,} tokens or more"
            f" (99 % fit in {most:,.0f}), or lengths scaled by {math.floor(1000 * limit / median) / 1000:g} or less"
        )


def _check_prompt(prompt: Lengths) -> None:
    limit, median = prompt.limit(), prompt.table.at(0.0)
    if median > limit:
        raise WorkloadError(
            f"prompt lengths: found a median of {median:,.0f} tokens and a cap of {limit:,.0f}, so most would be cut;"
            f" expected a cap of {max(1, math.ceil(median)):,} tokens or more"
        )
