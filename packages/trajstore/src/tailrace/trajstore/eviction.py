"""Which complete groups leave a full experience buffer (Laminar, section 3.1). Entry-point group ``tailrace.eviction``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import Candidate


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
