"""Planning over rollout snapshots: best-fit consolidation of the long tail (Laminar, Algorithm 1) and routing. Pure."""

from tailrace.contracts import Move
from tailrace.repack.consolidation import consolidate
from tailrace.repack.errors import LoadError, RepackError
from tailrace.repack.load import ReplicaLoad
from tailrace.repack.relocation import BestFit, NoRelocation
from tailrace.repack.routing import LeastLoaded, RoundRobin

__all__ = [
    "BestFit",
    "LeastLoaded",
    "LoadError",
    "Move",
    "NoRelocation",
    "RepackError",
    "ReplicaLoad",
    "RoundRobin",
    "consolidate",
]
