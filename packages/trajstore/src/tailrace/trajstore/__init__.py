"""The data module of asynchronous RL: prompt pool, partial-response pool and experience buffer. Standard library only."""

from tailrace.trajstore.buffer import ExperienceBuffer
from tailrace.trajstore.errors import (
    AlreadyConsumedError,
    BufferFullError,
    BufferLookupError,
    ParquetSupportError,
    PolicyError,
    PromptFileError,
    StoreBusyError,
    StoreClosedError,
    StoreFormatError,
    TrajectoryDataError,
    TrajectoryStateError,
    TrajstoreError,
    UnknownTrajectoryError,
)
from tailrace.trajstore.eviction import Eviction, Oldest, Stalest
from tailrace.trajstore.prompts import Prompt, PromptPool
from tailrace.trajstore.records import (
    Assignment,
    ConsumedTrajectory,
    PartialDelta,
    PartialResponse,
    Recovery,
    Resume,
    Status,
    StoreStats,
)
from tailrace.trajstore.samplers import Fifo, Lifo, Newest, RewardVariance
from tailrace.trajstore.store import TrajectoryStore

__all__ = [
    "AlreadyConsumedError",
    "Assignment",
    "BufferFullError",
    "BufferLookupError",
    "ConsumedTrajectory",
    "Eviction",
    "ExperienceBuffer",
    "Fifo",
    "Lifo",
    "Newest",
    "Oldest",
    "ParquetSupportError",
    "PartialDelta",
    "PartialResponse",
    "PolicyError",
    "Prompt",
    "PromptFileError",
    "PromptPool",
    "Recovery",
    "Resume",
    "RewardVariance",
    "Stalest",
    "Status",
    "StoreBusyError",
    "StoreClosedError",
    "StoreFormatError",
    "StoreStats",
    "TrajectoryDataError",
    "TrajectoryStateError",
    "TrajectoryStore",
    "TrajstoreError",
    "UnknownTrajectoryError",
]
