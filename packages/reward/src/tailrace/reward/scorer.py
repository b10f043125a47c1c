"""The reward scheduler for programs without an event loop: scores a list and returns the outcomes in its order."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tailrace.reward.errors import ScorerClosedError, ScoringError
from tailrace.reward.items import Outcome, ScoreItem
from tailrace.reward.scheduler import RewardScheduler
from tailrace.reward.settings import CodeSettings, VerifierSettings


class Scorer:
    """Scores responses. Thread-safe; close it, or use it as a context manager.

    Args:
        verifiers: your own verifiers in addition to the installed ones: name to ``"module:function"`` or
            ``"file.py:function"``. A data row can name only these and installed verifiers.
        workers: verifier processes, and programs that run at once.
        timeout_s: deadline of one verification; programs have adaptive timeouts.
        start_timeout_s: deadline for starting a worker and importing a verifier in it.

    Raises:
        SettingsError: a number is out of its range.
    """

    def __init__(
        self,
        verifiers: Mapping[str, str] | None = None,
        *,
        workers: int = 1,
        timeout_s: float = 10.0,
        start_timeout_s: float = 120.0,
    ) -> None:
        math = VerifierSettings(
            workers=workers, attempts=1, own=verifiers or {}, timeout_s=timeout_s, start_timeout_s=start_timeout_s
        )
        self._scheduler = RewardScheduler(math=math, code=CodeSettings(workers=workers, attempts=1))
        self._runner = asyncio.Runner()
        self._lock = threading.Lock()
        self._closed = False

    def score(self, items: Sequence[ScoreItem]) -> list[Outcome]:
        """One outcome for each item, in order.

        Raises:
            ScorerClosedError: the scorer was closed.
            ScoringError: an event loop runs in this thread.
            NoSandboxError: there are programs among them and no sandbox works here.
        """
        with self._lock:
            if self._closed:
                raise ScorerClosedError("the scorer is closed; make a new one")
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # there is none
                pass
            else:
                raise ScoringError("found an event loop in this thread, expected none: there, use RewardScheduler")
            return self._runner.run(self._all(items))

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the running workers of verifier functions."""
        return self._scheduler.pids

    def close(self) -> None:
        """Stop the workers, after a running `score` has returned. Calling it again does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._runner.run(self._scheduler.close())
                self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _all(self, items: Sequence[ScoreItem]) -> list[Outcome]:
        # Trajectories may repeat in a list, so each goes by its place.
        numbered = [dataclasses.replace(item, trajectory=str(place)) for place, item in enumerate(items)]
        outcomes = {int(outcome.trajectory): outcome async for outcome in self._scheduler.score(numbered)}
        return [dataclasses.replace(outcomes[place], trajectory=item.trajectory) for place, item in enumerate(items)]
