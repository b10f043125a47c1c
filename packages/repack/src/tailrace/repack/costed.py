"""The base of policies that plan with the cost of a decoding step."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

from tailrace.repack.errors import LoadError
from tailrace.repack.throughput import ThroughputModel


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

    def with_costs(self, k1: float, k2: float, k3: float, k4: float) -> Self:
        """The same policy with coefficients that were fitted in the run."""
        return dataclasses.replace(self, k1=k1, k2=k2, k3=k3, k4=k4)
