"""Scores by verifier functions, each in a worker process."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from tailrace.reward.errors import ScoringError, WorkerDiedError
from tailrace.reward.items import ScoreItem, ScoringResult, turns_in
from tailrace.reward.process import WorkerProcess
from tailrace.reward.settings import VerifierSettings

_Result = TypeVar("_Result")
_CANCELLED_S = 1.0
"""How long a verification that nobody waits for any more may go on. Most take milliseconds, and a new process seconds."""
_WALL = 30.0  # wall seconds for each second of a CPU budget: on busy cores the budget is to end a verification, not the clock


class VerifierWorker:
    """One worker process of the pool ``math``."""

    def __init__(self, settings: VerifierSettings) -> None:
        self._settings = settings
        self._process = WorkerProcess([sys.executable, "-m", "tailrace.reward.worker", json.dumps(dict(settings.own))])
        self._loaded: dict[str, float | None] = {}  # CPU budget of each verifier that the process has loaded

    @property
    def pid(self) -> int | None:
        """The worker's process id while it runs."""
        return self._process.pid

    async def score(self, item: ScoreItem) -> ScoringResult:
        """The verdict on a response.

        If it is cancelled, the process ends what it does and stays, unless that takes long. Races of samples cancel many, and
        a process that has to import its verifier again would hold up all that wait.

        Raises:
            RewardError: the verifier could not judge.
        """
        name, settings = item.verifier, self._settings
        budget_s = await _finishing(self._load(name), settings.start_timeout_s)
        request = {
            "verifier": name,
            "response": item.response_text,
            "answer": item.answer,
            "metadata": dict(item.metadata),
            "turned": turns_in(item.metadata) is not None,
        }
        try:
            timeout_s = settings.timeout_s + _WALL * (budget_s or 0.0)
            asked = self._process.ask(request, timeout_s, f"the verifier {name!r}")
            reply = await _finishing(asked, _CANCELLED_S)
        except TypeError as error:
            raise ScoringError(f"the row's metadata is no JSON: {error}") from error
        except WorkerDiedError as error:
            if budget_s is not None and error.status == -signal.SIGPROF:
                return ScoringResult(item.trajectory, 0.0, False, over_budget=f"cpu {budget_s:g} s")
            raise
        _raise_what_it_says(reply, name)
        return ScoringResult(item.trajectory, reply["reward"], reply.get("correct"))

    async def close(self) -> None:
        """Kill the process."""
        await self._process.stop()

    async def _load(self, name: str) -> float | None:
        """Import a verifier, which has a deadline of its own. Returns the CPU budget that it declares."""
        if self._process.pid is None:
            self._loaded.clear()
        if name not in self._loaded:
            reply = await self._process.ask({"load": name}, self._settings.start_timeout_s, f"loading {name!r}")
            _raise_what_it_says(reply, name)
            self._loaded[name] = reply.get("cpu_budget_s")
        return self._loaded[name]


async def _finishing(work: Coroutine[Any, Any, _Result], limit_s: float) -> _Result:
    """Wait for work that, if this is cancelled, has so many seconds to end by itself before it is cancelled too."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=limit_s)
        raise
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # whoever waited has heard of it, or does not wait any more


def _raise_what_it_says(reply: dict[str, Any], name: str) -> None:
    if "error" in reply:
        raise ScoringError(f"verifier {name!r}: {reply['error']}")
