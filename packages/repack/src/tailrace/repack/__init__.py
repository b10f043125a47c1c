"""Planning of rollouts: routing, dispatch, synchronisation, relocation, allocation, the cost model of decoding. All pure."""

from tailrace.contracts import Move
from tailrace.repack.adaptive_tp import AdaptiveTP, AdaptiveTPScaleDown, to_size
from tailrace.repack.allocation import Allocation, allocate, allocate_across
from tailrace.repack.balanced import Balanced
from tailrace.repack.batch_time import batch_like, batch_time_s
from tailrace.repack.consolidation import ReplicaLoad, consolidate
from tailrace.repack.dispatch import Dispatch, plan_dispatch
from tailrace.repack.errors import FitError, LoadError, NothingFitsError, RepackError, UnmeasuredError
from tailrace.repack.gains import ideal_gain, marginal_gain
from tailrace.repack.hybrid import Hybrid
from tailrace.repack.lpt import Schedule, lpt
from tailrace.repack.marginal_throughput import MarginalThroughput
from tailrace.repack.migration import Migration
from tailrace.repack.online_fit import FittedCosts, OnlineFit, StepTimes
from tailrace.repack.parallelism import Arrangement, StageShare, fewest_devices, round_sizes, share_devices
from tailrace.repack.prefix_aware import PrefixAware
from tailrace.repack.relocation import BestFit, NoRelocation
from tailrace.repack.routing import LeastLoaded, RoundRobin
from tailrace.repack.scale_down import ScaleDown
from tailrace.repack.skew_aware import SkewAware
from tailrace.repack.static import Static
from tailrace.repack.sync import Barrier, Interrupting, OnIdle, WhenDrained, WhenUseful
from tailrace.repack.throughput import ThroughputModel

__version__ = "0.1.0"
__all__ = [
    "AdaptiveTP",
    "AdaptiveTPScaleDown",
    "Allocation",
    "Arrangement",
    "Balanced",
    "Barrier",
    "BestFit",
    "Dispatch",
    "FitError",
    "FittedCosts",
    "Hybrid",
    "Interrupting",
    "LeastLoaded",
    "LoadError",
    "MarginalThroughput",
    "Migration",
    "Move",
    "NoRelocation",
    "NothingFitsError",
    "OnIdle",
    "OnlineFit",
    "PrefixAware",
    "RepackError",
    "ReplicaLoad",
    "RoundRobin",
    "ScaleDown",
    "Schedule",
    "SkewAware",
    "StageShare",
    "Static",
    "StepTimes",
    "ThroughputModel",
    "UnmeasuredError",
    "WhenDrained",
    "WhenUseful",
    "allocate",
    "allocate_across",
    "batch_like",
    "batch_time_s",
    "consolidate",
    "fewest_devices",
    "ideal_gain",
    "lpt",
    "marginal_gain",
    "plan_dispatch",
    "round_sizes",
    "share_devices",
    "to_size",
]
