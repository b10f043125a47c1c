"""What a replica's cache still has of trajectories that are in environments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace.fleetsim.engine import Work


class Prefixes:
    """Trajectories whose last turn ended on a replica, under the weights that it serves.

    Args:
        share: share of such a context that is in the cache when the trajectory comes back.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._here: set[str] = set()

    def left(self, trajectories: Iterable[str]) -> None:
        """Turns of these have ended."""
        self._here.update(trajectories)

    def find(self, works: Sequence[Work]) -> int:
        """Give work that comes back its cached tokens. Returns the response tokens of all that comes back."""
        back = [work for work in works if work.id in self._here] if self._here else []
        for work in back:
            self._here.discard(work.id)
            work.cached_tokens = int(self._share * (work.prompt_tokens + work.done_tokens))
        return sum(work.done_tokens for work in back)

    def clear(self) -> None:
        """The cache is gone."""
        self._here.clear()
