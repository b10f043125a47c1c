"""Which groups leave a full experience buffer. Entry-point group ``tailrace.eviction``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tailrace.contracts import Candidate


class Eviction(Protocol):
    """What an entry point of group ``tailrace.eviction`` names: a frozen dataclass, pure."""

    def evict(self, candidates: Sequence[Candidate], count: int) -> Sequence[int]:
        """Keys of exactly `count` groups that leave.

        Args:
            candidates: what the buffer holds, with the group that comes in as the last.
        """
        ...


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
