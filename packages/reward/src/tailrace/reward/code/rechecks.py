"""Tries a sample of the programs that used up their timeout again, with the largest one. This shows false timeouts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator

from tailrace.reward.errors import ScoringError
from tailrace.reward.items import ScoreItem


class Rechecks:
    """One recheck at a time, of the latest candidate, as long as rechecks take no more than their share of the time.

    Args:
        share: seconds of rechecks for each second of scores.
        recheck: scores an item with the largest timeout.
    """

    def __init__(self, share: float, recheck: Callable[[ScoreItem], Awaitable[None]]) -> None:
        self._share, self._recheck = share, recheck
        self._scores_s = self._rechecks_s = 0.0
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Count the time of a score."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._scores_s += time.monotonic() - begun

    def over_time(self, item: ScoreItem) -> None:
        """Try a program again, unless another is being tried or rechecks have taken their share of the time."""
        if self._rechecks_s < self._share * self._scores_s and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._again(item))

    async def close(self) -> None:
        """Stop the recheck that is under way."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _again(self, item: ScoreItem) -> None:
        begun = time.monotonic()
        # A sandbox that fails shows in the scores; a sample more or less does not matter.
        with contextlib.suppress(ScoringError):
            await self._recheck(item)
        self._rechecks_s += time.monotonic() - begun
