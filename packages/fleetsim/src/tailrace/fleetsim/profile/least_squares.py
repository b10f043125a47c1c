"""Least squares with coefficients of at least 0, for a handful of columns: costs are never negative."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence


def costs(
    rows: Sequence[Sequence[float]], targets: Sequence[float], scales: Sequence[float] | None = None
) -> list[float]:
    """The coefficients, none negative, with the least sum of squared relative errors.

    Every subset of the columns is tried, so there should be few. Without any row, or where a column is all 0, the coefficient
    is 0.

    Args:
        scales: what errors are relative to; the targets if None. Rows whose scale is not positive are left out.
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
            found = _solve([([row[column] for column in columns], target) for row, target in weighed])
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


def _solve(weighed: Sequence[tuple[Sequence[float], float]]) -> list[float] | None:
    """Coefficients that bring every row nearest to its target, by the normal equations; None if they are not determined."""
    rows, targets = [row for row, _ in weighed], [target for _, target in weighed]
    width = len(rows[0]) if rows else 0
    scales = [math.sqrt(math.fsum(row[c] ** 2 for row in rows)) for c in range(width)]
    if not rows or not all(scales):
        return None
    rows = [[value / scale for value, scale in zip(row, scales, strict=True)] for row in rows]
    matrix = [[math.fsum(row[a] * row[b] for row in rows) for b in range(width)] for a in range(width)]
    right = [math.fsum(row[a] * target for row, target in zip(rows, targets, strict=True)) for a in range(width)]
    for pivot in range(width):
        largest = max(range(pivot, width), key=lambda at: abs(matrix[at][pivot]))
        if abs(matrix[largest][pivot]) < 1e-9:
            return None
        matrix[pivot], matrix[largest] = matrix[largest], matrix[pivot]
        right[pivot], right[largest] = right[largest], right[pivot]
        for below in range(pivot + 1, width):
            factor = matrix[below][pivot] / matrix[pivot][pivot]
            matrix[below] = [x - factor * y for x, y in zip(matrix[below], matrix[pivot], strict=True)]
            right[below] -= factor * right[pivot]
    for pivot in reversed(range(width)):
        known = math.fsum(matrix[pivot][c] * right[c] for c in range(pivot + 1, width))
        right[pivot] = (right[pivot] - known) / matrix[pivot][pivot]
    return [value / scale for value, scale in zip(right, scales, strict=True)]
