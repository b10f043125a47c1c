"""Planning over rollout snapshots: routing, synchronisation, relocation, and the cost model of decoding. All pure."""

from tailrace.contracts import Move
from tailrace.repack.consolidation import consolidate
from tailrace.repack.errors import FitError, LoadError, RepackError
from tailrace.repack.interrupting import Interrupting
from tailrace.repack.load import ReplicaLoad
from tailrace.repack.marginal import ideal_gain, marginal_gain
from tailrace.repack.migration import Migration
from tailrace.repack.relocation import BestFit, NoRelocation
from tailrace.repack.routing import LeastLoaded, RoundRobin
from tailrace.repack.throughput import ThroughputModel
from tailrace.repack.usefulness import WhenUseful
from tailrace.repack.waterfall import MarginalThroughput

__all__ = [
    "BestFit",
    "FitError",
    "Interrupting",
    "LeastLoaded",
    "LoadError",
    "MarginalThroughput",
    "Migration",
    "Move",
    "NoRelocation",
    "RepackError",
    "ReplicaLoad",
    "RoundRobin",
    "ThroughputModel",
    "WhenUseful",
    "consolidate",
    "ideal_gain",
    "marginal_gain",
]
