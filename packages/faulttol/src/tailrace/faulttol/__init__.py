"""Heartbeats, detection, recovery and scripted faults. Pure, except for two functions that touch processes."""

from tailrace.faulttol.detection import ClusterLevel, RankLevel, RoleAware
from tailrace.faulttol.errors import (
    DetectionError,
    FaultError,
    FaulttolError,
    GroupError,
    HeartbeatError,
    InjectedError,
    LateAnswerError,
    MemberGoneError,
    RecoveryError,
)
from tailrace.faulttol.heartbeat import HeartbeatMonitor, Silence
from tailrace.faulttol.injection import CONTROLLER, STRUCK_ROLES, Fault, FaultKind, FaultSchedule, parse_fault, strike
from tailrace.faulttol.random_faults import at_steps, random_faults
from tailrace.faulttol.recovery import ROLES, Isolate, RestartTask, RoleBased, Trouble, Troubles, restarts_task
from tailrace.processes import die_with_parent

__version__ = "0.1.0"
__all__ = [
    "CONTROLLER",
    "ROLES",
    "STRUCK_ROLES",
    "ClusterLevel",
    "DetectionError",
    "Fault",
    "FaultError",
    "FaultKind",
    "FaultSchedule",
    "FaulttolError",
    "GroupError",
    "HeartbeatError",
    "HeartbeatMonitor",
    "InjectedError",
    "Isolate",
    "LateAnswerError",
    "MemberGoneError",
    "RankLevel",
    "RecoveryError",
    "RestartTask",
    "RoleAware",
    "RoleBased",
    "Silence",
    "Trouble",
    "Troubles",
    "at_steps",
    "die_with_parent",
    "parse_fault",
    "random_faults",
    "restarts_task",
    "strike",
]
