"""Contenders take turns, so that whatever else the machine does meets all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class Missing(Exception):  # noqa: N818
    """A peer that cannot be measured here, and why."""


@dataclass(frozen=True)
class Contender:
    """Something that moves bytes.

    Args:
        name: its row in the table.
        nbytes: how many it moves at a time.
        once: moves them; seconds.
        beside: the name of the contender that is its limit.
        close: gives back what it holds.
    """

    name: str
    nbytes: int
    once: Callable[[], float]
    beside: str | None = None
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Row:
    """What was measured: GB/s over all turns, and the median over the turns of the ratio to the limit's same turn."""

    name: str
    gb_per_s: float
    low: float
    high: float
    beside: str | None
    ratio: float | None
    ratio_low: float | None = None
    ratio_high: float | None = None


def measure(contenders: Sequence[Contender], repeats: int) -> list[Row]:
    """Let them take turns. A first turn, in which pages are mapped and buffers grow, does not count."""
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for contender in contenders:
        contender.once()
    for turn in range(repeats):
        # Forth and back, so that no contender always follows the same other.
        for contender in contenders if turn % 2 == 0 else reversed(contenders):
            seconds[contender.name].append(contender.once())
    rows = []
    for contender in contenders:
        rates = [contender.nbytes / value / 1e9 for value in seconds[contender.name]]
        ratios: list[float] = []
        if contender.beside is not None:
            limit = next(other for other in contenders if other.name == contender.beside)
            limits = [limit.nbytes / value / 1e9 for value in seconds[limit.name]]
            ratios = sorted(rate / best for rate, best in zip(rates, limits, strict=True))
        rows.append(
            Row(
                contender.name,
                statistics.median(rates),
                min(rates),
                max(rates),
                contender.beside,
                statistics.median(ratios) if ratios else None,
                ratios[0] if ratios else None,
                ratios[-1] if ratios else None,
            )
        )
    return rows


def printed(title: str, rows: Sequence[Row]) -> None:
    """The table of one group."""
    print(f"\n{title}")
    print(f"  {'':<46} {'GB/s':>7} {'lowest-highest':>16}   {'of its limit':>12} {'lowest-highest':>15}")
    for row in rows:
        spread = f"{row.low:.2f}-{row.high:.2f}"
        beside = "" if row.ratio is None else f"{row.ratio:>12.2f} {f'{row.ratio_low:.2f}-{row.ratio_high:.2f}':>15}"
        print(f"  {row.name:<46} {row.gb_per_s:>7.2f} {spread:>16}   {beside}")
