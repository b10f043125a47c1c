"""The experience buffer (Laminar sections 3.1 and 6): complete groups that wait to be trained on. Pure, without I/O.

Consumes: groups as they become complete. Waits for: nothing; a full buffer that evicts nothing refuses, and whoever fills it
holds back. What it guards: each key is handed out once, and an eviction is always told to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from tailrace.contracts import Candidate, Sampler
from tailrace.trajstore.errors import BufferFullError, BufferLookupError, PolicyError
from tailrace.trajstore.eviction import Eviction
from tailrace.trajstore.samplers import Fifo


class ExperienceBuffer:
    """Complete groups, metadata only.

    Args:
        capacity: groups that it holds; None sets no limit.
        sampler: which groups a batch takes; first in, first out by default.
        eviction: which groups leave when it is full; None refuses new ones instead.

    Raises:
        PolicyError: the capacity is below 1.
    """

    def __init__(
        self, capacity: int | None = None, *, sampler: Sampler | None = None, eviction: Eviction | None = None
    ) -> None:
        if capacity is not None and capacity < 1:
            raise PolicyError(f"found capacity={capacity}, expected at least 1 group, or None for no limit")
        self.capacity = capacity
        self._sampler: Sampler = Fifo() if sampler is None else sampler
        self._eviction = eviction
        self._groups: dict[int, Candidate] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, key: object) -> bool:
        return key in self._groups

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """What it holds, in the order in which it came in."""
        return tuple(self._groups.values())

    @property
    def full(self) -> bool:
        """Whether the next group costs an eviction, or is refused."""
        return self.capacity is not None and len(self._groups) >= self.capacity

    def put(self, candidate: Candidate) -> list[int]:
        """Take a complete group in.

        Returns:
            Keys that were evicted for it. The new group may be one of them: an eviction policy looks at it too.

        Raises:
            BufferFullError: the buffer is full and evicts nothing. Nothing has changed.
            PolicyError: the key is there already, or the eviction policy chose something else than one group of the buffer.
        """
        if candidate.key in self._groups:
            raise PolicyError(f"found group {candidate.key} in the buffer already, expected each group once")
        if not self.full:
            self._groups[candidate.key] = candidate
            return []
        if self._eviction is None:
            raise BufferFullError(
                f"the experience buffer holds {len(self._groups)} groups of at most {self.capacity} and evicts none; "
                "take a batch out first"
            )
        choices = {**self._groups, candidate.key: candidate}
        evicted = list(self._eviction.evict(tuple(choices.values()), 1))
        _check(evicted, choices.keys(), 1, "eviction policy", self._eviction)
        for key in evicted:
            del choices[key]
        self._groups = choices
        return evicted

    def sample(self, count: int) -> list[Candidate]:
        """Take a batch out, in the order in which it is to be trained on.

        Raises:
            BufferLookupError: there are fewer groups.
            PolicyError: the sampler chose something else than so many different groups of the buffer. Nothing has changed.
        """
        if not 0 <= count <= len(self._groups):
            raise BufferLookupError(
                f"found {len(self._groups)} groups in the experience buffer, expected {count} for a batch"
            )
        keys = list(self._sampler.pick(self.candidates, count))
        _check(keys, self._groups.keys(), count, "sampler", self._sampler)
        return [self._groups.pop(key) for key in keys]

    def remove(self, key: int) -> Candidate:
        """Take one group out, for example because it has become too stale.

        Raises:
            BufferLookupError: it is not there.
        """
        if key not in self._groups:
            raise BufferLookupError(f"found no group {key} in the experience buffer, expected one that was put in")
        return self._groups.pop(key)


def _check(keys: Sequence[int], known: Set[int], count: int, what: str, policy: object) -> None:
    unknown = [key for key in keys if key not in known]
    if len(keys) != count or len(set(keys)) != count or unknown:
        raise PolicyError(
            f"the {what} {type(policy).__name__} chose {list(keys)}, expected {count} different keys of the groups it was shown"
        )
