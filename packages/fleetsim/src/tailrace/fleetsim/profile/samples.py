"""What the measured members of a run note down, as they go. Plain data: it crosses processes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple


class Clock(NamedTuple):
    """A moment: the machine's monotonic clock, and what this process and this thread have computed so far. Seconds.

    The monotonic clock is one for all processes of a machine. Processor time is what a piece of work would take on a core of
    its own, whoever else wants the cores meanwhile.
    """

    wall_s: float
    process_s: float
    thread_s: float

    @classmethod
    def now(cls) -> Clock:
        """This moment in this thread."""
        return cls(time.monotonic(), time.process_time(), time.thread_time())


class Round(NamedTuple):
    """One step of an engine and what its replica did since the step before: taking work in, handing tokens over.

    Args:
        began: when the engine's step began.
        ended: when it was through.
        since: the end of the round before, or when this one's batch was submitted to an idle engine.
        running: trajectories that got a token.
        kv_tokens: tokens of theirs in the KV cache, prompts included, after the step.
        fresh: trajectories that were submitted since the round before.
        fresh_tokens: tokens that had to be prefilled for them.
        queued: trajectories that were in flight and got no token.
    """

    since: Clock
    began: Clock
    ended: Clock
    running: int
    kv_tokens: int
    fresh: int
    fresh_tokens: int
    queued: int


class Span(NamedTuple):
    """A piece of work of one kind."""

    began: Clock
    ended: Clock


class Update(NamedTuple):
    """One training step, or one mini-batch of it.

    Args:
        tokens: trained on, prompts included.
        square_tokens: sum of the squares of the trajectories' tokens, which attention follows.
        trajectories: their number.
        parts: mini-batches, each with an optimizer step of its own.
    """

    began: Clock
    ended: Clock
    tokens: int
    square_tokens: int
    trajectories: int
    parts: int


class Look(NamedTuple):
    """The KV cache at a moment when nothing was queued.

    Args:
        used_tokens: taken in the cache, as the engine counts them: in whole blocks.
        tokens: of each trajectory, prompts included.
    """

    used_tokens: float
    tokens: tuple[int, ...]


@dataclass(slots=True)
class ReplicaSamples:
    """What a replica noted.

    Args:
        finished: trajectories, when their last token was there (monotonic clock), and whether that left the engine idle.
        looks: into the KV cache.
        kv_capacity_tokens: what it holds.
        device: what the engine runs on, ``cpu`` or ``cuda``.
    """

    rounds: list[Round] = field(default_factory=list)
    finished: list[tuple[str, float, bool]] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    kv_capacity_tokens: int = 0
    device: str = "cpu"


@dataclass(slots=True)
class TrainerSamples:
    """What the trainer noted.

    Args:
        updates: steps of the run, the computing alone.
        steps: the same with fetching the batch and marking it consumed.
        publishes, checkpoints: for as long as the trainer stood still.
        sizes: updates of parts of the last batch, with nobody else at work.
        device: what it trains on, ``cpu`` or ``cuda``.
    """

    updates: list[Update] = field(default_factory=list)
    steps: list[Span] = field(default_factory=list)
    publishes: list[Span] = field(default_factory=list)
    checkpoints: list[Span] = field(default_factory=list)
    sizes: list[Update] = field(default_factory=list)
    device: str = "cpu"
