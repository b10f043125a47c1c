"""The base of policies that plan with the cost of a decoding step."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.repack.errors import LoadError
from tailrace.repack.throughput import ThroughputModel


@dataclass(frozen=True, slots=True)
class Costed:
    """The coefficients of the cost model, with the KV cache counted in tokens. `ThroughputModel.fit` finds them.

    Args:
        k1: seconds of a decoding step for each token in the KV cache.
        k2: seconds to read the weights.
        k3: seconds of computing for each running trajectory.
        k4: seconds of fixed overhead.

    Raises:
        LoadError: a coefficient is negative, or k2 and k4 are both 0, so that a step would take no time.
    """

    k1: float
    k2: float
    k3: float
    k4: float

    def __post_init__(self) -> None:
        model = self.model
        if not model.k2 + model.k4 > 0:
            raise LoadError(f"found k2={self.k2!r} and k4={self.k4!r}, expected a sum above 0: a step takes time")

    @property
    def model(self) -> ThroughputModel:
        """The cost model, with the KV cache counted in tokens."""
        return ThroughputModel(self.k1, self.k2, self.k3, self.k4)
