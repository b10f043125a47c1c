"""The stream generation service (StreamRL, section 3): prompts in, each sample out as it ends, weights replaced meanwhile."""

from tailrace.rollout.service.book import Sample
from tailrace.rollout.service.handle import ReplicaHandle, ReplicaProcess, StartReplica
from tailrace.rollout.service.prompts import Ranker
from tailrace.rollout.service.service import StreamGenerationService
from tailrace.rollout.service.stream import Stream

__all__ = [
    "Ranker",
    "ReplicaHandle",
    "ReplicaProcess",
    "Sample",
    "StartReplica",
    "Stream",
    "StreamGenerationService",
]
