"""What a pool knows of a session: enough to bring it back when its worker is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tailrace.environment.link import WorkerLink
from tailrace.environment.protocol import Action, Observation, StepResult


@dataclass(slots=True)
class SessionRecord:
    """A session, wherever it lives.

    Args:
        row: the row that it was begun with.
        link: the worker that has it; None or one that is gone: it has to be brought back before its next call.
        first: what `reset` returned; None before it did, and for a session that began with a snapshot.
        turns: the actions so far and their answers.
        state: the snapshot after the last of them, as the worker sent it; None where the environment has none.
        begun: whether there is anything to bring back.
    """

    number: int
    row: Mapping[str, Any]
    link: WorkerLink | None = None
    first: Observation | None = None
    turns: list[tuple[Action, StepResult]] = field(default_factory=list)
    state: str | None = None
    begun: bool = False
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def done(self) -> bool:
        """Whether the environment said so."""
        return bool(self.turns) and self.turns[-1][1].done

    @property
    def at_home(self) -> bool:
        """Whether its worker has it."""
        return self.link is not None and not self.link.gone


@dataclass(slots=True)
class PoolCounts:
    """What happened in a pool so far.

    Args:
        opened: sessions that began, anew or from elsewhere.
        steps: turns that were answered, each once, however often a worker computed it.
        workers_lost: workers that died or stood still and were killed.
        restored: sessions that went on from a snapshot.
        replayed: sessions that were played again.
        lost: sessions that could not be brought back, or whose replay answered otherwise.
        timeouts: sessions that ended since a call missed its deadline.
        raised: sessions that ended since the environment raised.
        nonsense: sessions that ended since the environment's answer was none.
    """

    opened: int = 0
    steps: int = 0
    workers_lost: int = 0
    restored: int = 0
    replayed: int = 0
    lost: int = 0
    timeouts: int = 0
    raised: int = 0
    nonsense: int = 0


class Opened(NamedTuple):
    """A session that began.

    Args:
        session: its number.
        observation: what the model reads first, beside the prompt.
    """

    session: int
    observation: Observation


class Replayed(NamedTuple):
    """A session that was played again.

    Args:
        session: its number.
        observation: what the model reads first.
        results: the answer to each action. Compare them with what you have: this pool did not see the first ones.
    """

    session: int
    observation: Observation
    results: tuple[StepResult, ...]
