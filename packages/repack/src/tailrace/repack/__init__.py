"""Planning over rollout snapshots: consolidation of the long tail, routing, and the cost model of decoding. All pure."""

from tailrace.contracts import Move
from tailrace.repack.consolidation import consolidate
from tailrace.repack.errors import FitError, LoadError, RepackError
from tailrace.repack.load import ReplicaLoad
from tailrace.repack.relocation import BestFit, NoRelocation
from tailrace.repack.routing import LeastLoaded, RoundRobin
from tailrace.repack.throughput import ThroughputModel

__all__ = [
    "BestFit",
    "FitError",
    "LeastLoaded",
    "LoadError",
    "Move",
    "NoRelocation",
    "RepackError",
    "ReplicaLoad",
    "RoundRobin",
    "ThroughputModel",
    "consolidate",
]
