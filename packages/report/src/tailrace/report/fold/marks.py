"""What happens to a member at a moment: a symbol in the timeline."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MarkKind(StrEnum):
    """What happened at a moment."""

    REPACK = "repack"
    PULL = "interrupted for a pull"
    EVICTION = "migration"
    STOPPING = "stopping"
    DOWN = "down"
    RESTART = "restart"
    SUSPECT = "suspect"
    PULL_FAILED = "pull failed"
    PUBLISHED = "published"
    RESUMED = "resumed"
    ADDED = "added"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to a member at a moment."""

    kind: MarkKind
    role: str
    member: str
    at_s: float
    label: str
