"""Scripted faults of an environment in a call: the member itself, or the worker process that the call is in."""

from __future__ import annotations

import asyncio
import threading

from tailrace.environment import Action, EnvironmentPool, StepResult
from tailrace.faulttol import FaultKind, strike
from tailrace.pipeline.roles.stops import Stops

TOOL = "tool"
_TURNS_OF_THE_LOOP = 4
"""Until a call that was begun is written to its worker."""


class ToolFaults:
    """Makes an environment's calls, and is struck in the middle of one if a fault says so.

    Args:
        pool: the sessions.
        stops: where the member stops.
    """

    def __init__(self, pool: EnvironmentPool, stops: Stops) -> None:
        self._pool, self._stops = pool, stops
        self._changed = threading.Condition()
        self._kind: FaultKind | None = None

    def strike_worker(self, kind: FaultKind, phase: str, timeout_s: float) -> bool:
        """Kill or stop a worker process: at once, or the one of the next call. Returns whether that was done in time."""
        if not phase:
            return any(strike(pid, kind) for pid in self._pool.pids[:1])
        with self._changed:
            self._kind = kind
            return self._changed.wait_for(lambda: self._kind is None, timeout_s)

    def forget(self) -> None:
        """Strike no worker: another controller takes over."""
        with self._changed:
            self._kind = None

    async def step(self, session: int, action: Action) -> StepResult:
        """What `EnvironmentPool.step` answers."""
        if self._kind is None and not self._stops.wanted(TOOL):
            return await self._pool.step(session, action)
        call = asyncio.create_task(self._pool.step(session, action))
        try:
            for _ in range(_TURNS_OF_THE_LOOP):
                await asyncio.sleep(0)
            self._strike_worker_of(session)
            if self._stops.wanted(TOOL):
                await asyncio.to_thread(self._stops.at, TOOL)
            return await call
        finally:
            call.cancel()  # nothing if it has ended

    def _strike_worker_of(self, session: int) -> None:
        pid = self._pool.worker_in_call(session)
        with self._changed:
            if self._kind is not None and pid is not None and strike(pid, self._kind):
                self._kind = None
                self._changed.notify_all()
