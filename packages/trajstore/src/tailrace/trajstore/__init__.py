"""The data module of asynchronous RL: prompts, trajectories until they were trained on, samplers, eviction. No dependency."""

from tailrace.contracts import PartialDelta, Resume
from tailrace.trajstore.archive import read_trained
from tailrace.trajstore.errors import (
    AlreadyConsumedError,
    DatasetsSupportError,
    ParquetSupportError,
    PromptFileError,
    StoreBusyError,
    StoreClosedError,
    StoreFormatError,
    TrajectoryDataError,
    TrajectoryStateError,
    TrajstoreError,
    UnknownTrajectoryError,
)
from tailrace.trajstore.group_policies import Fifo, InOrder, Lifo, Newest, Oldest, RewardVariance, Stalest
from tailrace.trajstore.prompt_files import DATASET
from tailrace.trajstore.prompt_mix import MixOrder, PromptMix
from tailrace.trajstore.prompt_pool import Messages, Prompt, PromptPool, read_prompts
from tailrace.trajstore.records import (
    Assignment,
    ConsumedTrajectory,
    Conversation,
    PartialResponse,
    Recovery,
    Status,
    StoreStats,
    Trainable,
    Turn,
)
from tailrace.trajstore.store import TrajectoryStore

__version__ = "0.1.0"
__all__ = [
    "AlreadyConsumedError",
    "Assignment",
    "ConsumedTrajectory",
    "Conversation",
    "DATASET",
    "DatasetsSupportError",
    "Fifo",
    "InOrder",
    "Lifo",
    "Messages",
    "MixOrder",
    "Newest",
    "Oldest",
    "ParquetSupportError",
    "PartialDelta",
    "PartialResponse",
    "Prompt",
    "PromptFileError",
    "PromptMix",
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
    "Trainable",
    "TrajectoryDataError",
    "TrajectoryStateError",
    "TrajectoryStore",
    "TrajstoreError",
    "Turn",
    "UnknownTrajectoryError",
    "read_prompts",
    "read_trained",
]
