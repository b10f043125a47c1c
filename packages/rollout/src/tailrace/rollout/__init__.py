"""Rollout engines (vLLM, transformers continuous batching) behind one protocol, and the replica worker that drives them.

Importing this package imports no engine; `build_engine` imports the one that it is asked for.
"""

from tailrace.rollout.errors import (
    CloseTimeoutError,
    DeviceMissingError,
    EngineBusyError,
    EngineDiedError,
    EngineMissingError,
    FlushTimeoutError,
    GenerationTimeoutError,
    ModelLoadError,
    OptionError,
    ReplicaCrashedError,
    ReplicaNotReadyError,
    RequestError,
    RolloutError,
    RouteConflictError,
    SourceMismatchError,
    WeightsError,
)
from tailrace.rollout.generation import Generation, generate
from tailrace.rollout.options import EngineOptions
from tailrace.rollout.order import ReplicaCommand
from tailrace.rollout.ports import SamplingRule, TrajectorySource, WeightSource
from tailrace.rollout.replica import MonotonicClock, ReplicaWorker
from tailrace.rollout.selection import build_engine, import_engine, select_engine

__all__ = [
    "CloseTimeoutError",
    "DeviceMissingError",
    "EngineBusyError",
    "EngineDiedError",
    "EngineMissingError",
    "EngineOptions",
    "FlushTimeoutError",
    "Generation",
    "GenerationTimeoutError",
    "ModelLoadError",
    "MonotonicClock",
    "OptionError",
    "ReplicaCommand",
    "ReplicaCrashedError",
    "ReplicaNotReadyError",
    "ReplicaWorker",
    "RequestError",
    "RolloutError",
    "RouteConflictError",
    "SamplingRule",
    "SourceMismatchError",
    "TrajectorySource",
    "WeightSource",
    "WeightsError",
    "build_engine",
    "generate",
    "import_engine",
    "select_engine",
]
