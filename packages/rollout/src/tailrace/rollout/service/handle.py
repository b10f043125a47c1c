"""What the service needs of a replica. `ReplicaWorker` is one, in a thread; `ReplicaProcess` is one in a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tailrace.contracts import Event
from tailrace.rollout.order import ReplicaCommand
from tailrace.rollout.service.book import Book
from tailrace.rollout.service.staged_weights import StagedWeights


@dataclass(frozen=True, slots=True)
class ReplicaSetup:
    """How a replica is started.

    Args:
        name: its name, another one at each start.
        model: Hugging Face model directory.
        engine: name of the engine plugin.
        options: engine options, with a seed of its own.
        book: prompts and tokens.
        weights: weight versions.
        flush_s: seconds between two batches of tokens.
        pull_timeout_s: deadline of a load of weights.
        start_timeout_s: deadline of a process's start, until its engine is loaded.
        closing: set when the service closes; a start that is under way gives up.
    """

    name: str
    model: Path
    engine: str
    options: Mapping[str, Any]
    book: Book
    weights: StagedWeights
    flush_s: float
    pull_timeout_s: float
    start_timeout_s: float
    closing: threading.Event = field(default_factory=threading.Event)


class ReplicaHandle(Protocol):
    """A running replica. `submit` is called from one thread, `events` from another."""

    def submit(self, command: ReplicaCommand) -> None:
        """Give it a command; raises ReplicaCrashedError if it has stopped."""
        ...

    def events(self, timeout_s: float) -> list[Event]:
        """What happened since the last call; raises ReplicaCrashedError after the last event of one that stopped."""
        ...

    def close(self, timeout_s: float) -> None:
        """Stop it and free what it holds."""
        ...


StartReplica = Callable[[ReplicaSetup], ReplicaHandle]
"""Starts a replica, and returns when its engine is loaded. It raises if it cannot, or if the service closes meanwhile."""
