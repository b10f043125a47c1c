"""Fits the workload: the groups that the model generated, and how they change while it learns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pvariance, variance
from typing import NamedTuple

from tailrace.contracts import Purpose
from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.machine import Curve, WorkloadPart
from tailrace.fleetsim.profile.run import OTHER_PROMPTS, MeasuredRun
from tailrace.fleetsim.workload.workload import Turns
from tailrace.trajstore import MixOrder

MOST_GROUPS = 600
WINDOWS = 10
WINDOW_GROUPS = 60
"""Least groups in a window, so that the standard error of a share is at most 0.06."""
SIGNIFICANT = 2.0
"""A slope is significant if it is at least this many standard errors away from 0."""
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)

Group = tuple[int, int, tuple[int, ...], tuple[float, ...]]


class _Recorded(NamedTuple):
    """A group, the number of its source, the seconds of its scores, and the turns of its samples."""

    group: Group
    source: int
    score_s: tuple[float, ...]
    turns: tuple[Turns, ...]


def fit_workload(measured: MeasuredRun) -> WorkloadPart:
    """The groups that were generated completely, including those that were dropped afterwards.

    Raises:
        ProfileError: there is no such group.
    """
    recorded = _groups(measured)
    groups = [one.group for one in recorded]
    if not groups:
        raise ProfileError("found no group with all its rewards, expected at least one: profile more steps (--steps)")
    versions = [version for version, _, _, _ in groups]
    lengths = [tokens for _, _, responses, _ in groups for tokens in responses]
    rewards = [reward for _, _, _, group in groups for reward in group]
    kept = _thinned(recorded)
    return WorkloadPart(
        groups=tuple(one.group for one in kept),
        sources=tuple(one.source for one in kept) if len(measured.config.task.shares) > 1 else (),
        score_s=tuple(one.score_s for one in kept) if any(any(one.score_s) for one in recorded) else (),
        turns=tuple(one.turns for one in kept)
        if any(len(turns) > 1 for one in recorded for turns in one.turns)
        else (),
        signal=log_odds(versions, [has_signal(one) for one in groups]),
        length=growth(versions, [fmean(map(math.log, responses)) for _, _, responses, _ in groups]),
        right=sum(reward > 0 for reward in rewards) / len(rewards),
        within=_within([[math.log(tokens) for tokens in responses] for _, _, responses, _ in groups]),
        prompt=_quantiles([prompt for _, prompt, _, _ in groups]),
        response=_quantiles(lengths),
    )


def has_signal(group: Group) -> bool:
    """Whether a group's rewards differ."""
    return len(set(group[3])) > 1


def log_odds(versions: Sequence[int], outcomes: Sequence[bool]) -> Curve:
    """Log-odds of an outcome by version, in windows of equal numbers of groups."""
    ordered = sorted(zip(versions, outcomes, strict=True))
    windows = max(1, min(WINDOWS, len(ordered) // WINDOW_GROUPS))
    points: list[tuple[float, float]] = []
    for window in range(windows):
        part = ordered[window * len(ordered) // windows : (window + 1) * len(ordered) // windows]
        middle, right = fmean(version for version, _ in part), sum(outcome for _, outcome in part)
        if not points or middle > points[-1][0]:
            points.append((middle, math.log((right + 0.5) / (len(part) - right + 0.5))))
    return Curve(points=tuple(points))


def growth(versions: Sequence[int], values: Sequence[float]) -> Curve:
    """The growth of values since version 0: a least-squares line, flat unless its slope is significant."""
    flat = Curve(points=((0.0, 0.0),))
    middle, centre, last = fmean(versions), fmean(values), max(versions)
    spread = math.fsum((v - middle) ** 2 for v in versions)
    if spread == 0 or len(values) < 3:
        return flat
    slope = math.fsum((v - middle) * (x - centre) for v, x in zip(versions, values, strict=True)) / spread
    rest = math.fsum((x - centre - slope * (v - middle)) ** 2 for v, x in zip(versions, values, strict=True))
    if abs(slope) < SIGNIFICANT * math.sqrt(rest / (len(values) - 2) / spread):
        return flat
    return Curve(points=((0.0, 0.0), (float(last), slope * last)))


def _groups(measured: MeasuredRun) -> list[_Recorded]:
    order = MixOrder(measured.config.task.shares or (1.0,), shuffle_seed=measured.config.seed + OTHER_PROMPTS)
    members: dict[int, list[tuple[int, int, float, float, Turns]]] = {}
    for trajectory in measured.trajectories.values():
        if trajectory.purpose is Purpose.TRAIN and trajectory.reward is not None and trajectory.tokens:
            turns = trajectory.turns or ((trajectory.tokens, 0.0),)
            outcome = (trajectory.version, trajectory.tokens, trajectory.reward, trajectory.score_s, turns)
            members.setdefault(trajectory.group, []).append(outcome)
    samples = measured.config.pipeline.samples_per_prompt
    return [
        _Recorded(
            (
                min(one[0] for one in found),
                measured.prompts[index],
                tuple(one[1] for one in found),
                tuple(one[2] for one in found),
            ),
            order.pool(index),
            tuple(round(one[3], 4) for one in found),
            tuple(tuple((tokens, round(seconds, 4)) for tokens, seconds in one[4]) for one in found),
        )
        for index, found in sorted(members.items())
        if len(found) >= samples
    ]


def _thinned(groups: Sequence[_Recorded]) -> list[_Recorded]:
    """At most `MOST_GROUPS` groups, evenly spread over the run."""
    if len(groups) <= MOST_GROUPS:
        return list(groups)
    return [groups[at * len(groups) // MOST_GROUPS] for at in range(MOST_GROUPS)]


def _within(groups: Sequence[Sequence[float]]) -> float:
    """Share of the variance that lies between groups (intraclass correlation): 0 where samples of one are as unlike as others.

    The variance within a group is that of its population: the mean of its few samples lies nearer to them than its own does.
    """
    total = pvariance([value for group in groups for value in group])
    within = [variance(group) for group in groups if len(group) > 1]
    return max(0.0, 1.0 - fmean(within) / total) if total and within else 1.0


def _quantiles(values: Sequence[int]) -> tuple[tuple[float, float], ...]:
    ordered = sorted(values)
    return tuple((share, float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])) for share in SHARES)
