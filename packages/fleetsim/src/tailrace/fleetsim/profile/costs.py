"""Fits costs by least squares with coefficients of at least 0."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tailrace.repack.throughput import least_squares


def costs(
    rows: Sequence[Sequence[float]], targets: Sequence[float], scales: Sequence[float] | None = None
) -> list[float]:
    """The coefficients of at least 0 with the least sum of squared relative errors.

    Every subset of the columns is tried, so there should be few columns. Without rows, or if a column is all 0, its
    coefficient is 0.

    Args:
        rows: the measured quantities of each sample, one per coefficient.
        targets: the measured cost of each sample.
        scales: errors are relative to these; None: to the targets. Rows whose scale is not positive are left out.
    """
    width = len(rows[0]) if rows else 0
    weighed = [
        ([value / scale for value in row], target / scale)
        for row, target, scale in zip(rows, targets, scales or targets, strict=True)
        if scale > 0
    ]
    best, least = [0.0] * width, math.inf
    for size in range(1, width + 1):
        for columns in itertools.combinations(range(width), size):
            chosen_rows = [[row[column] for column in columns] for row, _ in weighed]
            found = least_squares(chosen_rows, [target for _, target in weighed])
            if found is None or min(found) < 0:
                continue
            chosen = dict(zip(columns, found, strict=True))
            error = math.fsum((sum(chosen[c] * row[c] for c in columns) - target) ** 2 for row, target in weighed)
            if error < least * (1 - 1e-9):
                best, least = [chosen.get(column, 0.0) for column in range(width)], error
    return best


def relative_error(rows: Sequence[Sequence[float]], targets: Sequence[float], found: Sequence[float]) -> float:
    """Median of |estimated - measured| / measured; 0 without rows."""
    errors = sorted(
        abs(sum(a * b for a, b in zip(row, found, strict=True)) - target) / target
        for row, target in zip(rows, targets, strict=True)
        if target > 0
    )
    return errors[len(errors) // 2] if errors else 0.0
