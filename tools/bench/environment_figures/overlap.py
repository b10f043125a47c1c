"""Tokens per second of one engine whose conversations ask slow tools: it goes on with others meanwhile, or it waits.

Both ways generate the same turns: their lengths are fixed, and so are the seconds of each call. `overlapped` gives the engine
a conversation's next turn as soon as its tool has answered. `waiting` generates a turn of every conversation, waits until all
tools have answered, and goes on, as loops do that call a batch's `generate` once for each turn.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.contracts import Engine, Request, Sampling
from tailrace.environment import EnvironmentPool

VOCABULARY, PROMPT_TOKENS, ANSWER_TOKENS = 149, 48, 3
CALLS, CALL_WEIGHTS = (1, 2, 3, 4), (0.62, 0.2, 0.11, 0.07)  # as the task tool-sums
LAST_TURN_TOKENS = 6
SLOW = f"{Path(__file__).parent / 'slow.py'}:Slow"


@dataclass
class Talk:
    """A conversation: its prompt, the tokens of each of its turns, and those that it has."""

    name: str
    prompt: tuple[int, ...]
    turns: list[int]
    seed: int
    kept: list[int] = field(default_factory=list)
    turn: int = 0
    session: int = -1

    def request(self) -> Request:
        """The request for its next turn, which a limit ends."""
        most = len(self.kept) + self.turns[self.turn]
        return Request(f"{self.name}.{self.turn}", self.prompt, Sampling(1.0, most), tuple(self.kept))


def talks(count: int, seed: int) -> list[Talk]:
    """Conversations of one to four calls, of 12 to 50 tokens each."""
    numbers = random.Random(seed)
    return [
        Talk(
            f"talk{number}",
            tuple(numbers.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)),
            [*(numbers.randint(12, 50) for _ in range(numbers.choices(CALLS, CALL_WEIGHTS)[0])), LAST_TURN_TOKENS],
            seed * count + number,
        )
        for number in range(count)
    ]


class Rollout:
    """An engine, in a thread of its own, and the tools that its conversations ask."""

    def __init__(self, engine: Engine, thread: ThreadPoolExecutor, pool: EnvironmentPool) -> None:
        self._engine, self._thread, self._pool = engine, thread, pool
        self._running: dict[str, Talk] = {}
        self.tokens = 0

    async def _do(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    async def _submit(self, talks: list[Talk]) -> None:
        requests = [talk.request() for talk in talks]
        self._running.update({request.id: talk for request, talk in zip(requests, talks, strict=True)})
        await self._do(self._engine.submit, requests)

    async def _step(self) -> list[Talk]:
        """A step of the engine. Returns the conversations whose turn has ended, those without a further one left out."""
        ended = []
        for delta in await self._do(self._engine.step):
            talk = self._running[delta.id]
            talk.kept += delta.tokens
            self.tokens += len(delta.tokens)
            if delta.finish is not None:
                del self._running[delta.id]
                talk.turn += 1
                if talk.turn < len(talk.turns):
                    ended.append(talk)
        return ended

    async def _ask(self, talk: Talk) -> Talk:
        """Let the tool answer the last turn."""
        if talk.session < 0:
            talk.session = (await self._pool.open({"prompt": talk.name, "seed": talk.seed})).session
        await self._pool.step(talk.session, talk.name)
        if talk.turn == len(talk.turns) - 1:
            await self._pool.close(talk.session)
        talk.kept += talk.prompt[:ANSWER_TOKENS]
        return talk

    async def overlapped(self, talks: list[Talk]) -> None:
        """Go on with each conversation as soon as its tool has answered."""
        await self._submit(talks)
        asked: set[asyncio.Task[Talk]] = set()
        while self._running or asked:
            if self._running:
                asked |= {asyncio.create_task(self._ask(talk)) for talk in await self._step()}
            else:
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            answered = {task for task in asked if task.done()}
            if answered:
                asked -= answered
                await self._submit([task.result() for task in answered])

    async def waiting(self, talks: list[Talk]) -> None:
        """Go on when the tools of all conversations have answered."""
        while talks:
            await self._submit(talks)
            ended: list[Talk] = []
            while self._running:
                ended += await self._step()
            talks = await asyncio.gather(*map(self._ask, ended))


async def rates(
    model: Path, engine: str, latency: dict[str, float], count: int, repeats: int
) -> dict[str, list[float]]:
    """Generated tokens per second of both ways, in turn, and their ratio within each repeat.

    Args:
        latency: of the tool's calls, options of `Slow`.
        count: conversations at once.
    """
    from tailrace.rollout import build_engine

    options: dict[str, Any] = {"max_num_seqs": count, "max_model_len": 512, "threads": 1}
    found: dict[str, list[float]] = {"overlapped": [], "waiting": [], "ratio": []}
    with ThreadPoolExecutor(1) as thread:
        built: Engine = await asyncio.get_running_loop().run_in_executor(
            thread, build_engine, engine, str(model), options
        )
        try:
            async with EnvironmentPool(SLOW, latency, sessions=count, workers=2) as pool:
                await Rollout(built, thread, pool).overlapped(talks(8, 0))  # everything is warm now
                for repeat in range(1, repeats + 1):
                    rate = {}
                    ways = ("overlapped", "waiting") if repeat % 2 else ("waiting", "overlapped")
                    for way in ways:
                        rollout, begun = Rollout(built, thread, pool), time.perf_counter()
                        await getattr(rollout, way)(talks(count, repeat))
                        rate[way] = rollout.tokens / (time.perf_counter() - begun)
                    for way in ways:
                        found[way].append(rate[way])
                    found["ratio"].append(rate["overlapped"] / rate["waiting"])
        finally:
            await asyncio.get_running_loop().run_in_executor(thread, built.close)
    return found
