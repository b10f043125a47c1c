"""Axis routing: which replica runs the next trajectories. Entry-point group ``tailrace.routing``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import ReplicaView


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Each replica in turn, in order of name. Plugin ``round-robin``."""

    def choose(self, candidates: Sequence[ReplicaView], order: int) -> str:
        """The replica whose turn it is."""
        names = sorted(view.replica for view in candidates)
        return names[order % len(names)]


@dataclass(frozen=True, slots=True)
class LeastLoaded:
    """The replica with the smallest share of its capacity taken. Plugin ``least-loaded``.

    Among equals, the one that uses the least of its KV cache, then the first by name.
    """

    def choose(self, candidates: Sequence[ReplicaView], order: int) -> str:  # noqa: ARG002 - the protocol's arguments
        """The least loaded replica."""
        return min(candidates, key=lambda view: (view.in_flight / max(1, view.capacity), view.kv, view.replica)).replica
