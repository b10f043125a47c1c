"""A ranker that errs by a known measure: predictions with which given parts of the longest are found (StreamRL, Table 4). Pure.

The true place of each of n lengths becomes a normal score z, and the place that is predicted is that of z + s(z) e, with e a
standard normal number of its own. What is predicted is the true length of that place: so predictions have exactly the
distribution of the lengths, and only who has which is wrong. Those near the limit of a tail are mistaken most often.

One recall gives one s. Several give s(z) = s0 exp(b (z - z0)) above the limit z0 of the largest tail: StreamRL's rankers find
fewer of the longest 5 % (0.76) than the one s that fits their 20 % (0.87) would (0.82), so b is above 0, and all three come
out within 0.005. The expected recall of a tail of share p, P(z + s e > c | z > z_p) with P(z + s e > c) = p, is an integral;
s0 is found by bisection for each b that is tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from random import Random
from statistics import NormalDist

from tailrace.fleetsim.errors import FleetError

TABLE_4 = {
    "Qwen2.5-7B": {0.2: 0.87, 0.1: 0.82, 0.05: 0.76},
    "Qwen2.5-3B": {0.2: 0.85, 0.1: 0.79, 0.05: 0.72},
    "Qwen2.5-1.5B": {0.2: 0.81, 0.1: 0.75, 0.05: 0.68},
}
"""Recall by share of the tail, for each of the paper's rankers."""

Recalls = Mapping[float, float]
"""The part that is found of the longest, by their share of all."""

_NORMAL = NormalDist()
_SMALLEST, _LARGEST = 1e-3, 1e3  # noise beyond which predictions say all, or nothing
_STEPS, _COARSE = 8, 0.4  # slopes that are tried, either way
_HALVINGS = 22
_TOLERANCE = 0.03  # of a recall


def noisy_oracle(lengths: Sequence[float], recalls: Recalls, seed: int | str) -> list[float]:
    """What a ranker with these recalls predicts: the lengths themselves, some in the wrong place.

    Args:
        lengths: [n], the true ones, of prompts (means of their samples) or of trajectories: of what is ranked.
        recalls: the expected part that is found of the longest, by share of the tail, as in `TABLE_4`; 1.0 is the oracle, the
            share itself is chance. What is found of n lengths differs from it by chance, as it does for a real ranker.
        seed: of the errors. The same seed errs for the same ones, more or less as the recalls say.

    Returns:
        [n], a permutation of `lengths`.

    Raises:
        FleetError: as of `noise_of`.
    """
    return [lengths[other] for other in mistaken_for(lengths, noise_of(recalls), seed)]


def mistaken_for(lengths: Sequence[float], noise: Noise, seed: int | str) -> list[int]:
    """The position for which each one is taken; see `noisy_oracle`."""
    draw, count = Random(f"noisy oracle {seed}"), len(lengths)
    errors = [draw.gauss(0.0, 1.0) for _ in range(count)]
    ranked = sorted(range(count), key=lambda at: (-lengths[at], at))
    scores = [0.0] * count
    for place, at in enumerate(ranked):
        z = -_NORMAL.inv_cdf((place + 0.5) / count)
        scores[at] = z + noise(z) * errors[at]
    taken = [0] * count
    for place, at in enumerate(sorted(ranked, key=lambda at: -scores[at])):
        taken[at] = ranked[place]
    return taken


@dataclass(frozen=True, slots=True)
class Noise:
    """The spread of errors by normal score.

    Args:
        spread: at the limit of the largest tail.
        slope: how it rises with the score above that; below, it is level.
        limit: that limit.
    """

    spread: float
    slope: float
    limit: float

    def times(self, factor: float) -> Noise:
        """Errors that are so many times as large."""
        return Noise(self.spread * factor, self.slope, self.limit)

    def __call__(self, z: float) -> float:
        return min(_LARGEST, max(_SMALLEST, self.spread * math.exp(self.slope * max(0.0, z - self.limit))))


def noise_of(recalls: Recalls) -> Noise:
    """The noise with which these are the expected recalls: that of the largest share, and as nearly as can be the others.

    Raises:
        FleetError: a share or a recall is out of its range, or no noise comes within 0.03 of the others.
    """
    if not recalls:
        raise FleetError("found no recall, expected at least one, such as {0.2: 0.87}")
    for share, recall in recalls.items():
        if not 0 < share < 1:
            raise FleetError(f"found a recall of a tail of {share!r}, expected a share above 0 and below 1")
        if not share <= recall <= 1:
            raise FleetError(
                f"found a recall of {recall!r} of the longest {share:.0%}, expected {share!r} (chance) to 1"
            )
    return _noise_of(tuple(sorted(recalls.items(), reverse=True)))


def expected_recalls(noise: Noise, shares: Iterable[float]) -> dict[float, float]:
    """The recall to be expected of a ranker with such errors, by share of the tail."""
    wanted = tuple(shares)
    grid = _grid(wanted)
    return {share: _expected(noise, grid, share) for share in wanted}


@lru_cache(maxsize=256)
def _noise_of(recalls: tuple[tuple[float, float], ...]) -> Noise:
    shares = [share for share, _ in recalls]
    grid = _grid(shares)
    large, wanted = recalls[0]
    limit = -_NORMAL.inv_cdf(large)

    def fitted(slope: float) -> Noise:
        """The noise of this slope with the first recall."""
        low, high = math.log(_SMALLEST), math.log(_LARGEST)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            found = _expected(Noise(math.exp(middle), slope, limit), grid, large)
            low, high = (middle, high) if found > wanted else (low, middle)
        return Noise(math.exp((low + high) / 2), slope, limit)

    def off(noise: Noise) -> float:
        return max(abs(_expected(noise, grid, share) - recall) for share, recall in recalls)

    # Steeper noise may find more of the smaller tail or less of it, so slopes are tried, coarsely and then finely.
    noise = fitted(0.0)
    if len(recalls) > 1:
        noise = min((fitted(step * _COARSE) for step in range(-_STEPS, _STEPS + 1)), key=off)
        nearby = [noise.slope + step * _COARSE / _STEPS for step in range(-_STEPS, _STEPS + 1)]
        noise = min(map(fitted, nearby), key=off)
    if off(noise) > _TOLERANCE:
        expected = {share: round(found, 3) for share, found in expected_recalls(noise, shares).items()}
        raise FleetError(
            f"found recalls of {dict(recalls)!r}, expected some that one ranker can have, of which the nearest are {expected!r}"
        )
    return noise


def _grid(shares: Sequence[float]) -> list[tuple[float, float]]:
    """Normal scores that stand for all, longest first, and the weight of each: finer where a tail is."""
    edges = [0.0, *sorted(shares), 1.0]
    points: list[tuple[float, float]] = []
    for low, high in pairwise(edges):
        steps = 40 if high < 1 else 60
        width = (high - low) / steps
        points += [(-_NORMAL.inv_cdf(low + (step + 0.5) * width), width) for step in range(steps)]
    return points


def _expected(noise: Noise, grid: Sequence[tuple[float, float]], share: float) -> float:
    """The expected recall of the longest `share`."""
    rows = [(z, 1 / (noise(z) * math.sqrt(2)), weight) for z, weight in grid]
    erfc = math.erfc

    def above(cut: float, of: Sequence[tuple[float, float, float]]) -> float:
        return sum([weight * erfc((cut - z) * scale) for z, scale, weight in of]) / 2

    reach = 6.0 * (1 + max(noise(z) for z, _ in grid))
    low, high = -reach, reach
    for _ in range(36):
        cut = (low + high) / 2
        low, high = (cut, high) if above(cut, rows) > share else (low, cut)
    limit = -_NORMAL.inv_cdf(share)
    return above((low + high) / 2, [row for row in rows if row[0] > limit]) / share
