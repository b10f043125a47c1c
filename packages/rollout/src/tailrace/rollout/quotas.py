"""How a batch is divided among the sources of its prompts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

_Part = TypeVar("_Part", bound=Hashable)


def quotas(
    size: int, shares: Mapping[_Part, int], least: Mapping[_Part, int], most: Mapping[_Part, int]
) -> dict[_Part, int]:
    """Whole parts of `size`, as near to the shares as their limits allow.

    Each part is raised by one, where it is furthest below its exact share, until the parts add up to `size`.

    Args:
        size: the sum of the parts, if `least` and `most` allow it.
        shares: the share of each source, relative to those of the others.
        least: least part of each source, 0 if it is not there.
        most: largest part of each source; only those have a part.
    """
    parts = {source: least.get(source, 0) for source in most}
    total = sum(shares.get(source, 0) for source in most) or 1
    while sum(parts.values()) < size:
        below = [source for source in most if parts[source] < most[source]]
        if not below:
            break
        furthest = max(below, key=lambda source: size * shares.get(source, 0) / total - parts[source])
        parts[furthest] += 1
    return parts
