"""What the model generated: groups as they were, and what changes in them while it learns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pvariance

from tailrace.contracts import Purpose
from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.machine import Trend, WorkloadPart
from tailrace.fleetsim.profile.run import Measured

MOST_GROUPS = 600
BEYOND = 2
"""A trend is believed for so many times the versions that it was seen for."""
SIGNIFICANT = 2.0
"""Standard errors that a slope must be away from 0 to be one."""
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)

Group = tuple[int, int, tuple[int, ...], tuple[float, ...]]


def fit_workload(measured: Measured) -> WorkloadPart:
    """The groups that were generated whole, those that were dropped afterwards included.

    Raises:
        ProfileError: there is none.
    """
    groups = _groups(measured)
    if not groups:
        raise ProfileError("found no group with all its rewards, expected at least one: profile more steps")
    versions = [version for version, _, _, _ in groups]
    lengths = [tokens for _, _, responses, _ in groups for tokens in responses]
    rewards = [reward for _, _, _, group in groups for reward in group]
    until = BEYOND * max(versions)
    return WorkloadPart(
        groups=tuple(_thinned(groups)),
        signal=logistic_trend(versions, [has_signal(one) for one in groups], until),
        length=linear_trend(versions, [fmean(map(math.log, responses)) for _, _, responses, _ in groups], until),
        right=sum(reward > 0 for reward in rewards) / len(rewards),
        within=_within([[math.log(tokens) for tokens in responses] for _, _, responses, _ in groups]),
        prompt=_quantiles([prompt for _, prompt, _, _ in groups]),
        response=_quantiles(lengths),
    )


def has_signal(group: Group) -> bool:
    """Whether a group's rewards differ."""
    return len(set(group[3])) > 1


def logistic_trend(versions: Sequence[int], outcomes: Sequence[bool], until: int) -> Trend:
    """Log-odds of an outcome by version: maximum likelihood, Newton's method. Flat unless the slope is significant."""
    count = len(outcomes)
    share = (sum(outcomes) + 0.5) / (count + 1)
    flat = Trend(start=math.log(share / (1 - share)))
    start, slope = flat.start, 0.0
    for _ in range(25):
        odds = [1 / (1 + math.exp(-(start + slope * v))) for v in versions]
        a = math.fsum(p * (1 - p) for p in odds)
        b = math.fsum(p * (1 - p) * v for p, v in zip(odds, versions, strict=True))
        d = math.fsum(p * (1 - p) * v * v for p, v in zip(odds, versions, strict=True))
        determinant = a * d - b * b
        if determinant <= 1e-9 * max(1.0, a * d):
            return flat
        g = math.fsum(y - p for y, p in zip(outcomes, odds, strict=True))
        h = math.fsum((y - p) * v for y, p, v in zip(outcomes, odds, versions, strict=True))
        start += (d * g - b * h) / determinant
        slope += (a * h - b * g) / determinant
        if max(abs(start), abs(slope)) > 50:  # the outcomes are separated: there is no maximum
            return flat
    if abs(slope) < SIGNIFICANT * math.sqrt(a / determinant):
        return flat
    return Trend(start=start, per_version=slope, until=until)


def linear_trend(versions: Sequence[int], values: Sequence[float], until: int) -> Trend:
    """What values gain with each version: least squares. Starts at 0; flat unless the slope is significant."""
    middle, centre = fmean(versions), fmean(values)
    spread = math.fsum((v - middle) ** 2 for v in versions)
    if spread == 0 or len(values) < 3:
        return Trend(start=0.0)
    slope = math.fsum((v - middle) * (x - centre) for v, x in zip(versions, values, strict=True)) / spread
    rest = math.fsum((x - centre - slope * (v - middle)) ** 2 for v, x in zip(versions, values, strict=True))
    if abs(slope) < SIGNIFICANT * math.sqrt(rest / (len(values) - 2) / spread):
        return Trend(start=0.0)
    return Trend(start=0.0, per_version=slope, until=until)


def _groups(measured: Measured) -> list[Group]:
    members: dict[int, list[tuple[int, int, float]]] = {}
    for trajectory in measured.trajectories.values():
        if trajectory.purpose is Purpose.TRAIN and trajectory.reward is not None and trajectory.tokens:
            members.setdefault(trajectory.group, []).append((trajectory.version, trajectory.tokens, trajectory.reward))
    samples = measured.config.pipeline.samples_per_prompt
    return [
        (
            min(version for version, _, _ in found),
            measured.prompts[index],
            tuple(tokens for _, tokens, _ in found),
            tuple(reward for _, _, reward in found),
        )
        for index, found in sorted(members.items())
        if len(found) >= samples
    ]


def _thinned(groups: Sequence[Group]) -> list[Group]:
    """At most `MOST_GROUPS`, evenly over the run."""
    if len(groups) <= MOST_GROUPS:
        return list(groups)
    return [groups[at * len(groups) // MOST_GROUPS] for at in range(MOST_GROUPS)]


def _within(groups: Sequence[Sequence[float]]) -> float:
    """Share of the variance that lies between groups (intraclass correlation)."""
    total = pvariance([value for group in groups for value in group])
    return max(0.0, 1.0 - fmean(pvariance(group) for group in groups) / total) if total else 1.0


def _quantiles(values: Sequence[int]) -> tuple[tuple[float, float], ...]:
    ordered = sorted(values)
    return tuple((share, float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])) for share in SHARES)
