"""The cost of a decoding step and the throughput that follows (StaleFlow, equations 2 and 11), and its fit to measurements.

    step_latency_s = k1 * kv_bytes + max(k2, k3 * running) + k4

Attention reads the KV cache (k1). Matrix multiplication is bound by reading the weights (k2) or, above k2 / k3 trajectories,
by computing (k3 for each trajectory). k4 is a fixed overhead. The turning point is not Laminar's batch B in
`best-fit`: see `BestFit.batch`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

from tailrace.contracts import Facts
from tailrace.repack.errors import FitError, LoadError


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


Sample = tuple[float, int, float]


@dataclass(frozen=True, slots=True)
class ThroughputModel:
    """How long one decoding step of a replica takes.

    Args:
        k1: seconds for each byte of KV cache in use. Another unit may be used if `kv_bytes` is always in that unit.
        k2: seconds to read the weights.
        k3: seconds of computing for each running trajectory.
        k4: seconds of fixed overhead.

    Raises:
        LoadError: a coefficient is negative or not finite.
    """

    k1: float
    k2: float
    k3: float
    k4: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value >= 0 and math.isfinite(value)):
                raise LoadError(f"found {field.name}={value!r}, expected a finite number of at least 0")

    def step_latency_s(self, kv_bytes: float, running: int) -> float:
        """Seconds for one token of each running trajectory (equation 11)."""
        return self.k1 * kv_bytes + max(self.k2, self.k3 * running) + self.k4

    def throughput(self, kv_bytes: float, running: int) -> float:
        """Tokens per second over all running trajectories (equation 2); 0 if none is running.

        Raises:
            LoadError: a step takes no time.
        """
        try:
            return running / self.step_latency_s(kv_bytes, running) if running else 0.0
        except ZeroDivisionError:
            raise LoadError(f"found {self} for {running} trajectories, expected a step that takes time") from None

    @property
    def roofline_batch(self) -> int | None:
        """Most trajectories that decode as fast as one, at least 1; None if k3 is 0, so that computing never matters."""
        return max(1, math.floor(self.k2 / self.k3)) if self.k3 else None

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> ThroughputModel:
        """The model with the least squared error.

        Each split of the samples into few (memory-bound) and many (compute-bound) running trajectories is a linear problem;
        the best split is taken. If all samples are memory-bound, k3 is 0 and k2 includes k4; if all are compute-bound, k2 is 0.

        Args:
            samples: (kv_bytes, running, step_latency_s) of each sample, with several different `kv_bytes`.

        Raises:
            FitError: the samples do not determine the coefficients, or contradict the model.
        """
        if len(samples) < 2 or not all(math.isfinite(kv) and math.isfinite(latency) for kv, _, latency in samples):
            raise FitError(f"found {len(samples)} samples, expected at least 2, of finite numbers")
        counts = sorted({running for _, running, _ in samples})
        # If several splits fit equally well, the first is taken: the one that assumes no turning point between samples.
        splits = [counts[-1], counts[0] - 1, *counts[:-1]]
        models = [model for most in splits if (model := _fit_split(samples, most)) is not None]
        if not models:
            raise FitError(
                f"found {len(samples)} samples that determine no model with coefficients of at least 0; "
                "measure at several KV usages for each of several running counts"
            )
        errors = [_squared_error(model, samples) for model in models]
        enough = min(errors) + 1e-20 * math.fsum(latency**2 for _, _, latency in samples)
        found = next(model for model, error in zip(models, errors, strict=True) if error <= enough)
        if not found.step_latency_s(0, 1) > 0:
            raise FitError(f"found {len(samples)} samples by which a step takes no time ({found}), expected some")
        return found


def _squared_error(model: ThroughputModel, samples: Sequence[Sample]) -> float:
    return math.fsum((model.step_latency_s(kv, running) - latency) ** 2 for kv, running, latency in samples)


def _fit_split(samples: Sequence[Sample], most: int) -> ThroughputModel | None:
    """The least-squares model if up to `most` running trajectories are memory-bound and more are compute-bound."""
    # Unknowns: k1, k2 + k4 (memory-bound samples), k3 and k4 (compute-bound samples).
    rows = [((kv, 1.0, 0.0, 0.0) if running <= most else (kv, 0.0, float(running), 1.0)) for kv, running, _ in samples]
    used = [column for column in range(4) if any(row[column] for row in rows)]
    found = least_squares([[row[column] for column in used] for row in rows], [latency for _, _, latency in samples])
    if found is None:
        return None
    k1, memory, k3, k4 = (dict(zip(used, found, strict=True)).get(column, 0.0) for column in range(4))
    k2 = memory - k4 if 1 in used else 0.0
    # Rounding may leave a coefficient slightly below 0 that is really 0.
    slack = 1e-9 * max(abs(latency) for _, _, latency in samples)
    if min(k1 * max(1.0, max(abs(kv) for kv, _, _ in samples)), k2, k3, k4) < -slack:
        return None
    return ThroughputModel(*(max(0.0, value) for value in (k1, k2, k3, k4)))


@dataclass(frozen=True, slots=True)
class Costed:
    """The coefficients of the cost model, with the KV cache counted in tokens. `ThroughputModel.fit` finds them.

    Without any they are assumed: those of StaleFlow's Table 4 (Qwen3-30B-A3B on an H20), until the run has fitted its own.

    Args:
        k1: seconds of a decoding step for each token in the KV cache.
        k2: seconds to read the weights.
        k3: seconds of computing for each running trajectory.
        k4: seconds of fixed overhead.

    Raises:
        LoadError: a coefficient is negative, or k2 and k4 are both 0, so that a step would take no time.
    """

    k1: float = 7.28e-8
    k2: float = 1.72e-3
    k3: float = 1.25e-4
    k4: float = 1.07e-2

    def __post_init__(self) -> None:
        model = self.model
        if not model.k2 + model.k4 > 0:
            raise LoadError(f"found k2={self.k2!r} and k4={self.k4!r}, expected a sum above 0: a step takes time")

    @property
    def model(self) -> ThroughputModel:
        """The cost model, with the KV cache counted in tokens."""
        return ThroughputModel(self.k1, self.k2, self.k3, self.k4)

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """The coefficients that the run knows."""
        return {} if facts.costs is None else dataclasses.asdict(facts.costs)

    def learns_costs(self) -> bool:
        """The run fits what `with_costs` takes."""
        return True

    def with_costs(self, k1: float, k2: float, k3: float, k4: float) -> Self:
        """The same policy with coefficients that were fitted in the run."""
        return dataclasses.replace(self, k1=k1, k2=k2, k3=k3, k4=k4)


def nonnegative_least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float] | None:
    """The coefficients of at least 0 with the least squared error; None if no column determines one.

    Every set of columns is tried on the sums of their products, so a handful of columns costs little for any number of rows.
    """
    size = len(rows[0]) if rows else 0
    columns = [[row[column] for row in rows] for column in range(size)]
    scales = [math.sqrt(sum(map(operator.mul, column, column))) or 1.0 for column in columns]
    products = [
        [sum(map(operator.mul, one, other)) / (scales[i] * scales[j]) for j, other in enumerate(columns[: i + 1])]
        for i, one in enumerate(columns)
    ]
    right = [sum(map(operator.mul, one, targets)) / scale for one, scale in zip(columns, scales, strict=True)]
    best, most = None, 0.0
    for count in range(size, 0, -1):
        for chosen in itertools.combinations(range(size), count):
            found = _solve(products, right, chosen)
            if found is None or min(found) < 0:
                continue
            explained = sum([value * right[column] for value, column in zip(found, chosen, strict=True)])
            if explained > most * (1 + 1e-12):
                best, most = dict(zip(chosen, found, strict=True)), explained
        if best is not None and count == size:
            break  # nothing bounds it
    return None if best is None else [best.get(column, 0.0) / scales[column] for column in range(size)]


def _solve(products: Sequence[Sequence[float]], right: Sequence[float], chosen: Sequence[int]) -> list[float] | None:
    """The solution of the normal equations of some columns, from the lower triangle of their products; None if dependent."""
    lower: list[list[float]] = []  # Cholesky's factor
    halfway: list[float] = []
    for at, column in enumerate(chosen):
        row: list[float] = []
        for place, other in enumerate(lower):
            row.append((products[column][chosen[place]] - sum(map(operator.mul, row, other))) / other[place])
        left = products[column][column] - sum(map(operator.mul, row, row))
        if left < 1e-11:
            return None
        row.append(math.sqrt(left))
        lower.append(row)
        halfway.append((right[column] - sum(map(operator.mul, row, halfway))) / row[at])
    solution = halfway[:]
    for at in reversed(range(len(chosen))):
        solution[at] = (
            halfway[at] - sum([lower[below][at] * solution[below] for below in range(at + 1, len(chosen))])
        ) / lower[at][at]
    return solution
