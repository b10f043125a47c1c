"""Axis provisioning: who gets which devices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Static:
    """A fixed number of replicas.

    Args:
        count: rollout replicas.
    """

    count: int = 2

    def replicas(self) -> int:
        """The fixed number."""
        return self.count
