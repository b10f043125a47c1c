"""Planning over rollout snapshots: routing, synchronisation, relocation, and the cost model of decoding. All pure."""

from tailrace.contracts import Move
from tailrace.repack.adaptive_tp import AdaptiveTP
from tailrace.repack.consolidation import consolidate
from tailrace.repack.errors import FitError, LoadError, RepackError
from tailrace.repack.load import ReplicaLoad
from tailrace.repack.marginal_gain import ideal_gain, marginal_gain
from tailrace.repack.marginal_throughput import MarginalThroughput
from tailrace.repack.migration import Migration
from tailrace.repack.relocation import BestFit, NoRelocation
from tailrace.repack.resizing import to_size
from tailrace.repack.routing import LeastLoaded, RoundRobin
from tailrace.repack.scale_down import ScaleDown
from tailrace.repack.sync import Barrier, Interrupting, OnIdle, WhenUseful
from tailrace.repack.throughput import ThroughputModel

__all__ = [
    "AdaptiveTP",
    "Barrier",
    "BestFit",
    "FitError",
    "Interrupting",
    "LeastLoaded",
    "LoadError",
    "MarginalThroughput",
    "Migration",
    "Move",
    "NoRelocation",
    "OnIdle",
    "RepackError",
    "ReplicaLoad",
    "RoundRobin",
    "ScaleDown",
    "ThroughputModel",
    "WhenUseful",
    "consolidate",
    "ideal_gain",
    "marginal_gain",
    "to_size",
]
