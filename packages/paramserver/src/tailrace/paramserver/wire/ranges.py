"""Sets of chunks on the wire: ascending half-open ranges of their indices."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.paramserver.errors import ProtocolError


def to_ranges(indices: Iterable[int]) -> list[list[int]]:
    """Ascending indices as ranges `[first, end]`, `end` not included."""
    ranges = list[list[int]]()
    for index in indices:
        if ranges and ranges[-1][1] == index:
            ranges[-1][1] = index + 1
        else:
            ranges.append([index, index + 1])
    return ranges


def from_ranges(value: object, count: int) -> list[int]:
    """The indices, ascending. Nothing is expanded before every range is known to be one.

    Args:
        value: the value that a peer sent.
        count: how many chunks there are.

    Raises:
        ProtocolError: these are not ascending ranges apart from each other, of chunks 0 to `count`.
    """
    if not isinstance(value, list) or len(value) > count:
        raise ProtocolError(f"found {str(value)[:60]} as ranges of chunks, expected a list of at most {count}")
    last = 0
    for item in value:
        if not isinstance(item, list) or [*map(type, item)] != [int, int] or not last <= item[0] < item[1] <= count:
            raise ProtocolError(
                f"found the range {str(item)[:60]} of chunks, expected [first, end] from {last} to {count}"
            )
        last = item[1]
    return [index for first, end in value for index in range(first, end)]
