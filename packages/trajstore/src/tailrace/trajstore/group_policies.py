"""Which complete groups the trainer consumes (entry-point group ``tailrace.sampler``), and which leave a full experience buffer
(Laminar, section 3.1; ``tailrace.eviction``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tailrace.contracts import Candidate, same_rewards


@dataclass(frozen=True, slots=True)
class Fifo:
    """First completed, first trained on. The default. Plugin ``fifo``."""

    def pick(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """The groups that were completed first."""
        return [group.key for group in sorted(candidates, key=lambda group: group.order)[:count]]


@dataclass(frozen=True, slots=True)
class InOrder:
    """The group that was launched first, whenever it was completed. Plugin ``in-order``.

    Where a batch is one round, as on policy, its groups come in the same order in every run.
    """

    def pick(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """The groups of the lowest numbers."""
        return sorted(group.key for group in candidates)[:count]


@dataclass(frozen=True, slots=True)
class Lifo:
    """Last completed, first trained on. Old groups may wait for ever unless they are evicted. Plugin ``lifo``."""

    def pick(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """The groups that were completed last."""
        return [group.key for group in sorted(candidates, key=lambda group: -group.order)[:count]]


@dataclass(frozen=True, slots=True)
class Newest:
    """Newest weight version first; within a version, the first completed. Plugin ``newest``."""

    def pick(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """The groups of the newest versions."""
        return [group.key for group in sorted(candidates, key=lambda group: (-group.version, group.order))[:count]]


@dataclass(frozen=True, slots=True)
class RewardVariance:
    """Greatest variance of rewards first, which gives the largest group-relative advantages. Plugin ``reward-variance``.

    Groups whose rewards are all equal give no gradient and wait until no other group is left.
    """

    def pick(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """The groups of greatest reward variance, the first completed among equals."""
        ranked = sorted(candidates, key=lambda group: (-_variance(group.rewards), group.order))
        return [group.key for group in ranked[:count]]


def _variance(rewards: Sequence[float]) -> Fraction:
    """Population variance, exact, so that the order of the rewards does not matter; 0 if they differ by rounding alone."""
    if same_rewards(rewards):
        return Fraction(0)
    values = [Fraction(reward) for reward in rewards]
    mean = sum(values, Fraction(0)) / len(values)
    return sum(((value - mean) ** 2 for value in values), Fraction(0)) / len(values)


@dataclass(frozen=True, slots=True)
class Oldest:
    """The group that was completed first leaves. Plugin ``oldest``."""

    def evict(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """The groups that were completed first."""
        return [group.key for group in sorted(candidates, key=lambda group: group.order)[:count]]


@dataclass(frozen=True, slots=True)
class Stalest:
    """The group of the oldest weight version leaves, even if it has just come in. Plugin ``stalest``."""

    def evict(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """The groups of the oldest versions, the first completed among equals."""
        return [group.key for group in sorted(candidates, key=lambda group: (group.version, group.order))[:count]]
