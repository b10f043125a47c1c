"""Figures of batches, computed in the same way for the metrics during a run and for the report after it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_ROUNDING = 1e-12  # errors that are smaller, relative to the values, come from rounding


class Consumed(Protocol):
    """A trajectory of a batch: its oldest version, the trainer's version at its completion, its number of tokens."""

    @property
    def version(self) -> int | None:
        """The oldest version of its tokens. None if it is unknown; it then counts as the trainer's version."""

    @property
    def completed_at(self) -> int:
        """The trainer's version when the trajectory was complete."""

    @property
    def tokens(self) -> int:
        """Number of response tokens."""


@dataclass(slots=True)
class Batch:
    """One batch that is trained on. Lengths in tokens, staleness in versions, one entry per trajectory.

    Args:
        version: the version that training on it makes.
        began_s: when it was given to the trainer, on the run's clock.
        ended_s: when training on it ended; infinite until then.
    """

    version: int
    lengths: list[int]
    at_consumption: list[int]
    at_completion: list[int]
    began_s: float
    ended_s: float = math.inf

    @classmethod
    def of(cls, version: int, trainer: int, members: Iterable[Consumed], now: float) -> Batch:
        """The batch that makes `version`, given to a trainer that is at version `trainer`."""
        batch = cls(version, [], [], [], now)
        for member in members:
            oldest = trainer if member.version is None else member.version
            batch.lengths.append(member.tokens)
            batch.at_consumption.append(trainer - oldest)
            batch.at_completion.append(max(0, member.completed_at - oldest))
        return batch

    def figures(self) -> dict[str, Any]:
        """The batch's fields in a line of the metrics."""
        lengths = sorted(self.lengths)
        return {
            "trajectories": len(lengths),
            "response_tokens": sum(lengths),
            "length_p50": percentile(lengths, 0.5),
            "length_p99": percentile(lengths, 0.99),
            "staleness_mean": mean(self.at_consumption),
            "staleness_max": max(self.at_consumption, default=0),
            "staleness_at_completion_mean": mean(self.at_completion),
        }


def mean(values: Sequence[float]) -> float:
    """The mean of values; 0 for none."""
    return sum(values) / len(values) if values else 0.0


def standard_error(values: Sequence[float], clusters: Sequence[object] = ()) -> float:
    """The standard error of the mean of values; 0 for less than two independent ones.

    It is the sample standard deviation over the root of the number of values. Values of one cluster, such as samples of one
    prompt, are not independent: with clusters it is the cluster-robust error of the mean.

    Args:
        values: the values.
        clusters: the cluster of each value; without it each value is one of its own.
    """
    middle, apart = mean(values), dict[object, float]()
    for cluster, value in zip(clusters or range(len(values)), values, strict=True):
        apart[cluster] = apart.get(cluster, 0.0) + value - middle
    count = len(apart)
    if count < 2:
        return 0.0
    error = math.sqrt(count / (count - 1) * sum(total * total for total in apart.values())) / len(values)
    return error if error > _ROUNDING * max(map(abs, values)) else 0.0


def mean_counted(counts: Mapping[int, int]) -> float:
    """The mean of values, given how often each occurs; 0 for none."""
    total = sum(counts.values())
    return sum(value * count for value, count in counts.items()) / total if total else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of ordered values lies (nearest rank); 0 for none."""
    if not ordered:
        return 0.0
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])
