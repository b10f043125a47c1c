"""Scores by verifier functions, each in a worker process."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import sys
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from tailrace.processes import LineError
from tailrace.reward.errors import RewardError, ScoringError, WorkerDiedError
from tailrace.reward.items import ScoreItem, ScoringResult, turns_in
from tailrace.reward.process import WorkerProcess
from tailrace.reward.settings import VerifierSettings

_Result = TypeVar("_Result")
_CANCELLED_S = 1.0
"""How long a verification that nobody waits for any more may go on. Most take milliseconds, and a new process seconds."""
_TOGETHER_S = 0.05  # what goes in one message takes no longer, since none of it has an outcome before all of it
_MOST, _MOST_TEXT = 256, 1 << 22  # responses in one message, and their characters: a line of JSON has a limit
_WALL = 30.0  # wall seconds for each second of a CPU budget: on busy cores the budget is to end a verification, not the clock


class VerifierWorker:
    """One worker process of the pool ``math``."""

    def __init__(self, settings: VerifierSettings) -> None:
        self._settings = settings
        self._process = WorkerProcess([sys.executable, "-m", "tailrace.reward.worker", json.dumps(dict(settings.own))])
        self._loaded: dict[str, float | None] = {}  # CPU budget of each verifier that the process has loaded
        self._takes_s: dict[str, float] = {}  # seconds of a verification by each verifier, lately

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
        name = item.verifier
        try:
            reply = await self._ask([name], _request(item))
        except TypeError as error:
            raise ScoringError(f"the row's metadata is no JSON: {error}") from error
        except WorkerDiedError as error:
            budget_s = self._loaded.get(name)
            if budget_s is not None and error.status == -signal.SIGPROF:
                self._took(name, budget_s)
                return ScoringResult(item.trajectory, 0.0, False, over_budget=f"cpu {budget_s:g} s")
            raise
        _raise_what_it_says(reply, name)
        return self._result(item, reply)

    def together(self, items: Iterable[ScoreItem]) -> int:
        """How many of these items, from the first on, go in one message: as many as their verifiers lately judged in 0.05 s."""
        count, left_s, left_text = 0, _TOGETHER_S, _MOST_TEXT
        for item in items:
            left_s -= self._takes_s.get(item.verifier, math.inf)
            left_text -= len(item.response_text)
            if left_s < 0 or left_text < 0 or count == _MOST:
                break
            count += 1
        return max(1, count)

    async def score_together(self, items: Sequence[ScoreItem]) -> list[ScoringResult | None]:
        """The verdicts on responses, in order; see `score`.

        A result is None where the verifier raised, and all are None where the process did not answer. Such responses are then
        scored alone, so that each has its own error.
        """
        names = list(dict.fromkeys(item.verifier for item in items))
        try:
            found = await self._ask(names, {"requests": [_request(item) for item in items]})
        except (RewardError, LineError, TypeError):
            self._takes_s.clear()
            return [None] * len(items)
        replies = zip(items, found["replies"], strict=True)
        return [None if "error" in reply else self._result(item, reply) for item, reply in replies]

    async def close(self) -> None:
        """Kill the process."""
        await self._process.stop()

    async def _ask(self, names: Sequence[str], request: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request that uses these verifiers, with the deadline of one verification.

        A process that waited and was then killed from outside may never have read the request: the kernel needs a while to end
        a process with much memory, which looks alive until then. A fresh process is asked once more.
        """
        waited = self._process.pid is not None
        try:
            return await self._asked(names, request)
        except WorkerDiedError as error:
            if not waited or error.status != -signal.SIGKILL:
                raise
        return await self._asked(names, request)

    async def _asked(self, names: Sequence[str], request: dict[str, Any]) -> dict[str, Any]:
        settings = self._settings
        budgets = [await _finishing(self._load(name), settings.start_timeout_s) for name in names]
        timeout_s = settings.timeout_s + _WALL * max(budget or 0.0 for budget in budgets)
        what = " or ".join(f"the verifier {name!r}" for name in names)
        return await _finishing(self._process.ask(request, timeout_s, what), _CANCELLED_S)

    def _result(self, item: ScoreItem, reply: dict[str, Any]) -> ScoringResult:
        self._took(item.verifier, reply["seconds"])
        return ScoringResult(item.trajectory, reply["reward"], reply.get("correct"), seconds=reply["seconds"])

    def _took(self, name: str, seconds: float) -> None:
        """Note how long a verification took, so that slow ones are soon asked for alone."""
        known = self._takes_s.get(name, seconds)
        self._takes_s[name] = max(seconds, known) if seconds > _TOGETHER_S else (3 * known + seconds) / 4

    async def _load(self, name: str) -> float | None:
        """Import a verifier, which has a deadline of its own. Returns the CPU budget that it declares."""
        if self._process.pid is None:
            await self._process.stop()  # one that ended while nothing was asked owes no reply
            self._loaded.clear()
        if name not in self._loaded:
            reply = await self._process.ask({"load": name}, self._settings.start_timeout_s, f"loading {name!r}")
            _raise_what_it_says(reply, name)
            self._loaded[name] = reply.get("cpu_budget_s")
        return self._loaded[name]


def _request(item: ScoreItem) -> dict[str, Any]:
    return {
        "verifier": item.verifier,
        "response": item.response_text,
        "answer": item.answer,
        "metadata": dict(item.metadata),
        "turned": turns_in(item.metadata) is not None,
    }


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
