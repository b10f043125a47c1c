"""Bounded staleness: StaleFlow's staleness manager, groups, and admission policies from on-policy to unbounded. All pure."""

from tailrace.staleness.bounded import Bounded
from tailrace.staleness.buffers import BufferState, Entry
from tailrace.staleness.errors import (
    DuplicateError,
    LimitError,
    NotReadyError,
    OutdatedForkError,
    RedundantError,
    SamplerError,
    StalenessBoundExceeded,
    StalenessError,
    StateError,
    UnknownBufferError,
    UnknownEntryError,
    VersionError,
)
from tailrace.staleness.group_tracker import GroupTracker
from tailrace.staleness.in_flight_cap import InFlightCap
from tailrace.staleness.inherent import Inherent
from tailrace.staleness.lockstep import OneStep, OnPolicy
from tailrace.staleness.manager import StalenessManager
from tailrace.staleness.tentative import Tentative

__version__ = "0.1.0"
__all__ = [
    "Bounded",
    "BufferState",
    "DuplicateError",
    "Entry",
    "GroupTracker",
    "InFlightCap",
    "Inherent",
    "LimitError",
    "NotReadyError",
    "OnPolicy",
    "OneStep",
    "OutdatedForkError",
    "RedundantError",
    "SamplerError",
    "StalenessBoundExceeded",
    "StalenessError",
    "StalenessManager",
    "StateError",
    "Tentative",
    "UnknownBufferError",
    "UnknownEntryError",
    "VersionError",
]
