"""Measurements by the measured members of a run, as plain data, which is sent between processes; and how long work takes.

Work takes as long as on the member's own cores, though members shared the cores while the clocks were read. On a GPU this is
the time that passed. On shared cores that depends on the other members too: there it is the process's processor time divided
by the number of cores that the member keeps busy.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class ClockReading(NamedTuple):
    """A moment: the machine's monotonic clock, and the processor time of this process and thread so far, in seconds.

    All processes of a machine share the monotonic clock. The processor time of a piece of work is what it would take on its
    own core, even if others use the cores at the same time.
    """

    wall_s: float
    process_s: float
    thread_s: float

    @classmethod
    def now(cls) -> ClockReading:
        """This moment in this thread."""
        return cls(time.monotonic(), time.process_time(), time.thread_time())


class EngineRound(NamedTuple):
    """One step of an engine, with its replica's work since the previous step (taking work, handing tokens over).

    Args:
        since: the end of the previous round, or the time at which this round's batch was submitted to an idle engine.
        began: when the engine's step began.
        ended: when the engine's step ended.
        running: number of trajectories that got a token.
        kv_tokens: their tokens in the KV cache after the step, including prompts.
        fresh: number of trajectories submitted since the previous round.
        fresh_tokens: number of tokens to prefill for them.
        queued: number of trajectories in flight that got no token.
    """

    since: ClockReading
    began: ClockReading
    ended: ClockReading
    running: int
    kv_tokens: int
    fresh: int
    fresh_tokens: int
    queued: int


class WorkSpan(NamedTuple):
    """A piece of work of one kind."""

    began: ClockReading
    ended: ClockReading


class TrainingUpdate(NamedTuple):
    """One training step, or one mini-batch of it.

    Args:
        tokens: number of tokens trained on, including prompts.
        square_tokens: sum of the squares of the trajectories' tokens, for the cost of attention.
        trajectories: number of trajectories.
        parts: number of mini-batches, each with its own optimizer step.
    """

    began: ClockReading
    ended: ClockReading
    tokens: int
    square_tokens: int
    trajectories: int
    parts: int


class Look(NamedTuple):
    """The KV cache at a moment when no trajectory was queued.

    Args:
        used_tokens: tokens in use as the engine counts them, in whole blocks.
        tokens: number of tokens of each trajectory, including prompts.
    """

    used_tokens: float
    tokens: tuple[int, ...]


@dataclass(slots=True)
class ReplicaSamples:
    """A replica's measurements.

    Args:
        rounds: the engine's steps.
        finished: id of each finished trajectory, time of its last token (monotonic clock), whether the engine was then idle.
        looks: states of the KV cache.
        kv_capacity_tokens: tokens that fit into the KV cache; 0 if unknown.
        device: device of the engine, ``cpu`` or ``cuda``.
    """

    rounds: list[EngineRound] = field(default_factory=list)
    finished: list[tuple[str, float, bool]] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    kv_capacity_tokens: int = 0
    device: str = "cpu"


@dataclass(slots=True)
class TrainerSamples:
    """The trainer's measurements.

    Args:
        updates: the run's steps, computing only.
        steps: the run's steps, including fetching the batch and marking it as consumed.
        publishes, checkpoints: times in which the trainer stalled for them.
        sizes: updates on parts of the last batch, while no other member worked.
        device: the trainer's device, ``cpu`` or ``cuda``.
    """

    updates: list[TrainingUpdate] = field(default_factory=list)
    steps: list[WorkSpan] = field(default_factory=list)
    publishes: list[WorkSpan] = field(default_factory=list)
    checkpoints: list[WorkSpan] = field(default_factory=list)
    sizes: list[TrainingUpdate] = field(default_factory=list)
    device: str = "cpu"


class ClockKind(StrEnum):
    """The clock that measures a member's own time."""

    WALL = "wall"
    PROCESS = "process"
    THREAD = "thread"


@dataclass(frozen=True, slots=True)
class Timing:
    """One member's clock.

    Args:
        kind: which clock.
        cores: number of cores that the member keeps busy while it computes, at least 1; 1 for the wall clock.
    """

    kind: ClockKind
    cores: float = 1.0

    def spent_s(self, began: ClockReading, ended: ClockReading) -> float:
        """Seconds that the work takes on the member's own cores."""
        if self.kind is ClockKind.WALL:
            return ended.wall_s - began.wall_s
        return self.processor_s(began, ended) / self.cores

    def processor_s(self, began: ClockReading, ended: ClockReading) -> float:
        """Processor seconds of the work; 0 with the wall clock, whose members share no cores."""
        if self.kind is ClockKind.PROCESS:
            return ended.process_s - began.process_s
        return ended.thread_s - began.thread_s if self.kind is ClockKind.THREAD else 0.0


def timing_of(device: str, *, processes: bool, spans: Iterable[tuple[ClockReading, ClockReading]]) -> Timing:
    """The clock of a member.

    Args:
        device: the device that it computes on.
        processes: whether every member has its own process; otherwise only threads can be told apart.
        spans: times in which it computed; the ninth decile of the cores that it kept busy is used.
    """
    if device != "cpu":
        return Timing(ClockKind.WALL)
    kind = ClockKind.PROCESS if processes else ClockKind.THREAD
    own = Timing(kind)
    busy = sorted(
        own.processor_s(began, ended) / passed
        for began, ended in spans
        if (passed := ended.wall_s - began.wall_s) > 0.001
    )
    return Timing(kind, max(1.0, busy[int(0.9 * len(busy))]) if busy else 1.0)
