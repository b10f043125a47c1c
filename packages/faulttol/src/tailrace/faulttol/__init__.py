"""Heartbeats, recovery policies and scripted fault injection. Pure, except for two functions that touch processes."""

from tailrace.faulttol.errors import FaultError, FaulttolError, HeartbeatError, RecoveryError
from tailrace.faulttol.heartbeat import Death, HeartbeatMonitor, Suspicion
from tailrace.faulttol.injection import Fault, FaultKind, FaultSchedule, parse_fault
from tailrace.faulttol.process import die_with_parent, strike
from tailrace.faulttol.recovery import ROLES, Isolate, RestartTask

__all__ = [
    "ROLES",
    "Death",
    "Fault",
    "FaultError",
    "FaultKind",
    "FaultSchedule",
    "FaulttolError",
    "HeartbeatError",
    "HeartbeatMonitor",
    "Isolate",
    "RecoveryError",
    "RestartTask",
    "Suspicion",
    "die_with_parent",
    "parse_fault",
    "strike",
]
