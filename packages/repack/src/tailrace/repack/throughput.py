"""The cost of a decoding step and the throughput that follows (StaleFlow, equations 2 and 11), and its fit to measurements.

    step_latency_s = k1 * kv_bytes + max(k2, k3 * running) + k4

Attention reads the KV cache; matrix multiplication is bound by reading the weights (k2) or, past k2 / k3 trajectories, by
computing (k3 for each trajectory); k4 is what every step costs. Laminar's roofline batch B is the turning point.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tailrace.repack.errors import FitError, LoadError

Sample = tuple[float, int, float]


@dataclass(frozen=True, slots=True)
class ThroughputModel:
    """How long one decoding step of a replica takes.

    Args:
        k1: seconds for each byte of KV cache in use. Any other unit does, if `kv_bytes` is always in it.
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
        """Tokens per second over all running trajectories (equation 2); 0 if none is running."""
        return running / self.step_latency_s(kv_bytes, running) if running else 0.0

    @property
    def roofline_batch(self) -> int | None:
        """The most trajectories that decode as fast as one, at least 1; None if computing was never seen to matter."""
        return max(1, math.floor(self.k2 / self.k3)) if self.k3 else None

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> ThroughputModel:
        """The model with the least squared error.

        Every split of the samples into few (memory-bound) and many (compute-bound) running trajectories is a linear problem;
        the best is taken. Samples of one kind only leave the other unseen: then k3 is 0, with k4 part of k2, or k2 is 0.

        Args:
            samples: (kv_bytes, running, step_latency_s), with several different `kv_bytes`.

        Raises:
            FitError: the samples do not determine the coefficients, or contradict the model.
        """
        if len(samples) < 2 or not all(math.isfinite(kv) and math.isfinite(latency) for kv, _, latency in samples):
            raise FitError(f"found {len(samples)} samples, expected at least 2, of finite numbers")
        counts = sorted({running for _, running, _ in samples})
        # Where several splits explain the samples, the first: one that claims no turning point that was not seen.
        splits = [counts[-1], counts[0] - 1, *counts[:-1]]
        models = [model for most in splits if (model := _fit_split(samples, most)) is not None]
        if not models:
            raise FitError(
                f"found {len(samples)} samples that no model with coefficients of at least 0 is determined by; "
                "measure at several KV usages for each of several running counts"
            )
        errors = [_squared_error(model, samples) for model in models]
        enough = min(errors) + 1e-20 * math.fsum(latency**2 for _, _, latency in samples)
        return next(model for model, error in zip(models, errors, strict=True) if error <= enough)


def _squared_error(model: ThroughputModel, samples: Sequence[Sample]) -> float:
    return math.fsum((model.step_latency_s(kv, running) - latency) ** 2 for kv, running, latency in samples)


def _fit_split(samples: Sequence[Sample], most: int) -> ThroughputModel | None:
    """The least-squares model if up to `most` running trajectories are memory-bound and more are compute-bound."""
    # Unknowns: k1, k2 + k4 (memory-bound samples), k3 and k4 (compute-bound samples).
    rows = [((kv, 1.0, 0.0, 0.0) if running <= most else (kv, 0.0, float(running), 1.0)) for kv, running, _ in samples]
    used = [column for column in range(4) if any(row[column] for row in rows)]
    found = _least_squares([[row[column] for column in used] for row in rows], [latency for _, _, latency in samples])
    if found is None:
        return None
    k1, memory, k3, k4 = (dict(zip(used, found, strict=True)).get(column, 0.0) for column in range(4))
    k2 = memory - k4 if 1 in used else 0.0
    # Rounding may leave a coefficient that is zero in truth a hair below it.
    slack = 1e-9 * max(abs(latency) for _, _, latency in samples)
    if min(k1 * max(1.0, max(abs(kv) for kv, _, _ in samples)), k2, k3, k4) < -slack:
        return None
    return ThroughputModel(*(max(0.0, value) for value in (k1, k2, k3, k4)))


def _least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float] | None:
    """The solution with the least squared error by orthogonalisation; None if the columns are not independent."""
    size = len(rows[0])
    scales = [math.sqrt(math.fsum(row[column] ** 2 for row in rows)) for column in range(size)]
    basis: list[list[float]] = []
    upper = [[0.0] * size for _ in range(size)]
    for column in range(size):
        vector = [row[column] / scales[column] for row in rows]
        # Twice, since the first pass leaves what cancellation has spoilt.
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
