"""Rollout engines (vLLM, transformers continuous batching) behind one protocol, the replica worker that drives them, the stream
generation service, and the rounds of tail batching.

Importing this package imports no engine; `build_engine` imports the one that it is asked for.
"""

from tailrace.rollout.command_order import ReplicaCommand
from tailrace.rollout.engine_selection import (
    able_engines,
    build_engine,
    check_engine_options,
    engine_abilities,
    import_engine,
    select_engine,
)
from tailrace.rollout.errors import (
    CloseTimeoutError,
    DeviceMissingError,
    EngineAsleepError,
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
    RoundError,
    RouteConflictError,
    ServiceDownError,
    SourceMismatchError,
    UpdateFailedError,
    UpdateRefusedError,
    VersionTimeoutError,
    WeightsDifferError,
    WeightsError,
)
from tailrace.rollout.generation import Generation, generate
from tailrace.rollout.options import EngineOptions
from tailrace.rollout.ports import SamplingRule, TrajectorySource, WeightSource
from tailrace.rollout.replica import MonotonicClock, ReplicaWorker
from tailrace.rollout.served_weights import WeightComparison, digest_of
from tailrace.rollout.service import Sample, StreamGenerationService
from tailrace.rollout.tail_batching import Round, TailRounds

__version__ = "0.1.0"
__all__ = [
    "CloseTimeoutError",
    "DeviceMissingError",
    "EngineAsleepError",
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
    "Round",
    "RoundError",
    "RouteConflictError",
    "Sample",
    "SamplingRule",
    "ServiceDownError",
    "SourceMismatchError",
    "StreamGenerationService",
    "TailRounds",
    "TrajectorySource",
    "UpdateFailedError",
    "UpdateRefusedError",
    "VersionTimeoutError",
    "WeightComparison",
    "WeightSource",
    "WeightsDifferError",
    "WeightsError",
    "able_engines",
    "build_engine",
    "check_engine_options",
    "digest_of",
    "engine_abilities",
    "generate",
    "import_engine",
    "select_engine",
]
