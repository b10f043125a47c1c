"""Least squares for a handful of columns, without a library: the fit of costs to measurements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence


def least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float] | None:
    """The coefficients of the columns with the least squared error, by orthogonalisation.

    None if the columns do not determine them: there are no rows, a column is all 0, or one follows from the others.
    """
    size = len(rows[0]) if rows else 0
    scales = [math.sqrt(math.fsum(row[column] ** 2 for row in rows)) for column in range(size)]
    if not rows or not all(scales):
        return None
    basis: list[list[float]] = []
    upper = [[0.0] * size for _ in range(size)]
    for column in range(size):
        vector = [row[column] / scales[column] for row in rows]
        # Two passes, since cancellation leaves an error after the first.
        for _, (index, other) in itertools.product(range(2), enumerate(basis)):
            share = math.fsum(a * b for a, b in zip(vector, other, strict=True))
            upper[index][column] += share
            vector = [a - share * b for a, b in zip(vector, other, strict=True)]
        norm = math.sqrt(math.fsum(value * value for value in vector))
        if norm < 1e-9:
            return None
        upper[column][column] = norm
        basis.append([value / norm for value in vector])
    solution = [math.fsum(a * b for a, b in zip(vector, targets, strict=True)) for vector in basis]
    for row in reversed(range(size)):
        rest = math.fsum(upper[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (solution[row] - rest) / upper[row][row]
    return [value / scale for value, scale in zip(solution, scales, strict=True)]
