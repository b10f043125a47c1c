"""Heartbeats, detection, recovery and scripted faults. Pure, except for two functions that touch processes."""

from tailrace.faulttol.detection import ClusterLevel, RankLevel, RoleAware
from tailrace.faulttol.errors import DetectionError, FaultError, FaulttolError, HeartbeatError, RecoveryError
from tailrace.faulttol.heartbeat import HeartbeatMonitor, Silence
from tailrace.faulttol.injection import Fault, FaultKind, FaultSchedule, parse_fault
from tailrace.faulttol.process import die_with_parent, strike
from tailrace.faulttol.recovery import ROLES, Isolate, RestartTask

__all__ = [
    "ROLES",
    "ClusterLevel",
    "DetectionError",
    "Fault",
    "FaultError",
    "FaultKind",
    "FaultSchedule",
    "FaulttolError",
    "HeartbeatError",
    "HeartbeatMonitor",
    "Isolate",
    "RankLevel",
    "RecoveryError",
    "RestartTask",
    "RoleAware",
    "Silence",
    "die_with_parent",
    "parse_fault",
    "strike",
]
