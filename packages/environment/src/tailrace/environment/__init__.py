"""Environments of multi-turn tasks: one protocol, and a pool of sessions in worker processes that a kill does not lose.

``tailrace.environment.python_tool`` is the built-in environment, a Python tool in a sandbox; ``tailrace.environment.testing``
has the contract suite for environments of your own.
"""

from tailrace.environment.errors import (
    ActionTooLongError,
    EnvironmentsError,
    NonsenseError,
    PoolClosedError,
    PoolFullError,
    RaisedError,
    SessionError,
    SessionLostError,
    SessionTimeoutError,
    SetupError,
    UnknownSessionError,
)
from tailrace.environment.protocol import GROUP, Action, Environment, Observation, StepResult
from tailrace.environment.session_pool import EnvironmentPool, Opened, PoolCounts, Replayed
from tailrace.environment.workers import Abilities, environment_names, examine_environment

__version__ = "0.1.0"
__all__ = [
    "GROUP",
    "Abilities",
    "Action",
    "ActionTooLongError",
    "Environment",
    "EnvironmentPool",
    "EnvironmentsError",
    "NonsenseError",
    "Observation",
    "Opened",
    "PoolClosedError",
    "PoolCounts",
    "PoolFullError",
    "RaisedError",
    "Replayed",
    "SessionError",
    "SessionLostError",
    "SessionTimeoutError",
    "SetupError",
    "StepResult",
    "UnknownSessionError",
    "environment_names",
    "examine_environment",
]
