"""Which relay becomes the head of a chain whose head died; the head of the first chain is the master (Laminar, section 4.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: How far a relay is, larger is further: the stamp of its newest complete version, then the newest version that is
#: arriving and the chunks of that one.
Progress = tuple[int, int, int]
NOTHING: Progress = (-1, -1, 0)


def elect(candidates: Iterable[str], progress: Mapping[str, Progress]) -> str:
    """The new head of a chain: the newest complete version, then the most chunks of one that arrives, then the name.

    Raises:
        ValueError: there is no candidate.
    """
    return min(candidates, key=lambda name: (*(-value for value in progress.get(name, NOTHING)), name))
